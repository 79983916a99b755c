# SPDX-License-Identifier: Apache-2.0
"""The SDK for wasmplane plugins in Python.

    from wasmplane import Plugin, Rule, deny, get

    plugin = Plugin("my-plugin", "0.1.0")

    @plugin.validate(match=[Rule(["CREATE"], [""], ["pods"])], fields=["object.metadata.labels"])
    def owner(request):
        if not get(request, "object", "metadata", "labels", "owner"):
            return deny("name an owner", field="metadata.labels")

main.py has a variable plugin. A hook's function gets the document of its point as dicts and lists, and answers
None to let it pass. With fields the document has these and what they stand in, which is what makes a call cheap.

The module is loaded when the plugin is built: what it computes then is in the module, and costs no start. Each call
begins with the variables as some earlier call left them: what they keep is a cache. There are no files, no network and no threads.

Nothing here needs wasmplane to be imported, but for host functions: a plugin can be tested by pytest.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field as _field, fields as _fields, is_dataclass
from typing import Any, Callable, Literal, NoReturn, Sequence, TypedDict, TypeVar, Union

try:  # editors know it by 3.11
    from typing import Unpack
except ImportError:
    Unpack = Union  # type: ignore[assignment]

# What a document is: objects and arrays, as JSON has them. Integers are exact.
Document = dict[str, Any]


def get(document: Any, *path: str | int, default: Any = None) -> Any:
    """What is at a path of keys and indexes; default where there is nothing on the way."""
    for key in path:
        try:
            document = document[key]
        except (KeyError, IndexError, TypeError):
            return default
    return default if document is None else document


# ---- What hooks say of themselves ----


@dataclass(frozen=True)
class Rule:
    """What a hook at admission is asked about. None, or "*" in a list: everything."""

    operations: Sequence[str] | None = None
    api_groups: Sequence[str] | None = None
    resources: Sequence[str] | None = None
    api_versions: Sequence[str] | None = None


@dataclass(frozen=True)
class Watch:
    """A kind of object that a plugin reconciles or makes."""

    version: str
    resource: str
    kind: str
    group: str | None = None
    selector: str | None = None


@dataclass(frozen=True)
class Groups:
    """Teams or queues of pods, by what is written in them; the host counts what each of them has. of is
    pod.metadata.namespace, pod.metadata.labels["..."] or pod.metadata.annotations["..."]; names has the group of each
    value, other that of all others."""

    of: str
    names: dict[str, str]
    other: str | None = None


# abi.yaml: begin events
# What can happen in the cluster and make a pod worth another try.
Event = Literal[
    "nodeAdded",  # A node came.
    "nodeAllocatableGrew",  # A node has more to give.
    "nodeLabelsChanged",  # A node's labels changed.
    "nodeTaintsChanged",  # A node's taints changed.
    "podRemoved",  # A pod has gone.
    "podBound",  # A pod was bound.
    "volumesChanged",  # Volumes, claims or classes changed.
    "podChanged",  # The pod itself changed.
    "nodeRemoved",  # A node was deleted.
]
# abi.yaml: end events


class Options(TypedDict, total=False):
    """What a hook says of itself."""

    match: Sequence[Rule]
    """At admission and custom resources: what it is asked about. None at all: every resource."""
    fields: Sequence[str]
    """Paths of what it reads: "object.spec.containers[*].image". None: the whole document."""
    alternatives: dict[str, dict[str, str]]
    """Names of places that depend on the kind: {"@replicas": {"Deployment": "spec.replicas", "*": "spec.size"}}."""
    pure: bool
    """The answer depends on the input and the settings only, so that the host may keep it."""
    side_effects: Literal["None", "NoneOnDryRun", "Some"]
    """What a call changes besides answering, by host functions."""
    events: Sequence[Event]
    """Of a step of scheduling: what may change its mind about a pod that it refused. None: anything."""
    primary: Watch
    """Of reconcile: the kind that it is asked about."""
    owned: Sequence[Watch]
    """Of reconcile: the kinds that it makes."""


F = TypeVar("F", bound=Callable[..., Any])

# abi.yaml: begin operations
ABI = 1

# The operations and points, by hook.
OPERATIONS: dict[str, tuple[int, str]] = {
    "mutate": (1, "admission.mutate"),
    "validate": (2, "admission.validate"),
    "authorize": (3, "authorization"),
    "filter": (4, "scheduling.filter"),
    "score": (5, "scheduling.score"),
    "reconcile": (7, "reconcile"),
    "node_admission": (8, "nodeadmission"),
    "convert": (9, "customresource.convert"),
    "validate_custom": (10, "customresource.validate"),
    "pre_enqueue": (11, "scheduling.preEnqueue"),
    "queue_sort": (12, "scheduling.queueSort"),
    "pre_filter": (13, "scheduling.preFilter"),
    "post_filter": (14, "scheduling.postFilter"),
    "pre_score": (15, "scheduling.preScore"),
    "normalize": (16, "scheduling.normalize"),
    "reserve": (17, "scheduling.reserve"),
    "unreserve": (18, "scheduling.unreserve"),
    "permit": (19, "scheduling.permit"),
    "pre_bind": (20, "scheduling.preBind"),
    "bind": (21, "scheduling.bind"),
    "post_bind": (22, "scheduling.postBind"),
}
# abi.yaml: end operations


_NAMES = {op: name for name, (op, _) in OPERATIONS.items()}


class Plugin:
    """A plugin: its name, and the functions that its decorators are put on."""

    def __init__(
        self, name: str, version: str = "", *, needs: Sequence[str] = (), groups: Groups | None = None,
        settings_schema: dict[str, Any] | None = None,
    ) -> None:
        """needs names host functions that the plugin cannot do without. settings_schema is a JSON schema of the settings:
        the host holds an entry's settings against it first, and names the field that is wrong."""
        if not isinstance(name, str) or not name:
            raise TypeError('a plugin has a name: Plugin("my-plugin", "0.1.0")')
        self.name, self.version, self.needs, self.groups = name, version, needs, groups
        self.settings_schema = settings_schema
        self._hooks: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {}
        self._settings: Callable[[Any], str | None] | None = None

    def settings(self, function: F) -> F:
        """The function gets the entry's settings before anything else. A text that it answers says why they are
        refused. What it puts other decorators on takes the place of the hook of the same point."""
        self._settings = function
        return function

    # abi.yaml: begin hooks
    def mutate(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """admission.mutate: what an object becomes before it is stored."""
        return self._hook("mutate", dict(options), given)

    def validate(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """admission.validate: whether it may be stored."""
        return self._hook("validate", dict(options), given)

    def authorize(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """authorization: who may do what."""
        return self._hook("authorize", dict(options), given)

    def filter(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """scheduling.filter: whether a pod may run on a node."""
        return self._hook("filter", dict(options), given)

    def score(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """scheduling.score: how well a node suits."""
        return self._hook("score", dict(options), given)

    def reconcile(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """reconcile: what there should be for an object."""
        return self._hook("reconcile", dict(options), given)

    def node_admission(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """nodeadmission: whether a node runs a pod."""
        return self._hook("node_admission", dict(options), given)

    def convert(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """customresource.convert: what an object is in another version."""
        return self._hook("convert", dict(options), given)

    def validate_custom(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """customresource.validate: what a schema cannot say of a custom resource."""
        return self._hook("validate_custom", dict(options), given)

    def pre_enqueue(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """scheduling.preEnqueue: whether a pod is tried at all."""
        return self._hook("pre_enqueue", dict(options), given)

    def queue_sort(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """scheduling.queueSort: which pod goes first."""
        return self._hook("queue_sort", dict(options), given)

    def pre_filter(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """scheduling.preFilter: which nodes are looked at."""
        return self._hook("pre_filter", dict(options), given)

    def post_filter(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """scheduling.postFilter: who makes room where no node is left."""
        return self._hook("post_filter", dict(options), given)

    def pre_score(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """scheduling.preScore: what the scores of a cycle need."""
        return self._hook("pre_score", dict(options), given)

    def normalize(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """scheduling.normalize: what the plugin's scores are among each other."""
        return self._hook("normalize", dict(options), given)

    def reserve(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """scheduling.reserve: whether a chosen node is taken."""
        return self._hook("reserve", dict(options), given)

    def unreserve(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """scheduling.unreserve: nothing: it learns that the choice came to nothing."""
        return self._hook("unreserve", dict(options), given)

    def permit(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """scheduling.permit: whether a pod is bound now, later or not."""
        return self._hook("permit", dict(options), given)

    def pre_bind(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """scheduling.preBind: the same, just before binding."""
        return self._hook("pre_bind", dict(options), given)

    def bind(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """scheduling.bind: who binds, and with which annotations."""
        return self._hook("bind", dict(options), given)

    def post_bind(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:
        """scheduling.postBind: nothing: it learns that the pod is bound."""
        return self._hook("post_bind", dict(options), given)
    # abi.yaml: end hooks

    def _hook(self, name: str, options: dict[str, Any], given: tuple[Any, ...]) -> Callable[[F], F]:
        if given:
            raise TypeError(f"@plugin.{name} has no parentheses: write @plugin.{name}() or @plugin.{name}(fields=[...])")
        for key in options:
            if key not in Options.__annotations__:
                raise TypeError(f"{name} has {key}: expected one of {', '.join(Options.__annotations__)}")

        def register(function: F) -> F:
            if not callable(function):
                raise TypeError(f"@plugin.{name}() stands above a function")
            self._hooks[name] = (function, options)
            return function

        return register

    def manifest(self) -> dict[str, Any]:
        """What the plugin says of itself, as the host is told."""
        if not self._hooks:
            raise TypeError(f"the plugin has no hook: expected one of {', '.join('@plugin.' + n for n in OPERATIONS)}")
        hooks = []
        for name, (op, point) in OPERATIONS.items():
            if name not in self._hooks:
                continue
            options = dict(self._hooks[name][1])
            fields = list(options.get("fields", ()))
            if name == "normalize" and fields and "scores" not in fields:
                options["fields"] = [*fields, "scores"]
            hooks.append({"op": op, "point": point, "encoding": "json", **{_camel(k): v for k, v in options.items()}})
        return {
            "abi": ABI, "name": self.name, "version": self.version, "settings": self._settings is not None,
            "needs": list(self.needs), "hooks": hooks, **({"groups": self.groups} if self.groups else {}),
            **({"settingsSchema": self.settings_schema} if self.settings_schema is not None else {}),
        }

    def ask(self, operation: int, document: Any) -> Any:
        """What the plugin answers to an operation, as the host is told; None: nothing."""
        if operation == 0:
            said = self._settings(document) if self._settings else None
            if isinstance(said, str):
                raise Failure(said)
            return None
        name = _NAMES.get(operation, "")
        if name not in self._hooks:
            raise Failure(f"there is no hook for operation {operation}")
        return _formed(name, self._hooks[name][0](document))


# ---- Answers ----


class Failure(Exception):
    """Makes the call fail with these words and no others: the failure policy of the entry decides."""


def fail(message: str) -> NoReturn:
    """Fails: the failure policy of the plugin's entry decides. Any other exception does the same, with its place."""
    raise Failure(message)


@dataclass(slots=True)
class Denial:
    """What deny makes."""

    message: str
    field: str | None = None
    code: int | None = None
    reason: str | None = None
    for_good: bool = False


def deny(message: str, *, field: str | None = None, code: int | None = None, reason: str | None = None, for_good: bool = False) -> Denial:
    """Refuses, at every point that can: a request, a pod, a node. field is what is wrong ("spec.containers[0].image"),
    code the status of HTTP (403 where nothing is said), reason one of Kubernetes; for_good, at filter and pre_filter: whatever
    pods leave."""
    return Denial(str(message), field, code, reason, for_good)


@dataclass(slots=True)
class Allowance:
    """What allow makes."""

    reason: str | None = None


def allow(reason: str | None = None) -> Allowance:
    """Lets through. It is needed where saying nothing leaves the decision to others: at authorize."""
    return Allowance(reason)


@dataclass
class Cause:
    """One of several fields that are wrong."""

    field: str
    message: str
    reason: str | None = None


@dataclass
class Decision:
    """An answer at admission. object is the whole changed object, only of hooks without fields."""

    allowed: bool = True
    message: str | None = None
    field: str | None = None
    code: int | None = None
    reason: str | None = None
    causes: list[Cause] | None = None
    patch: list[Document] | None = None
    object: Any = None
    warnings: list[str] | None = None
    audit_annotations: dict[str, str] | None = None


def invalid(*causes: Cause) -> Decision:
    """Refuses a custom resource because of several fields at once."""
    return Decision(allowed=False, message="", causes=list(causes))


def warn(*warnings: str) -> Decision:
    """Lets a request through, and shows warnings to the user."""
    return Decision(warnings=list(warnings))


def patch(*operations: Document | None) -> Decision:
    """Changes the object; None among the operations is left out."""
    return Decision(patch=[o for o in operations if o])


def add(path: str, value: Any) -> Document:
    """Puts a value at a path ("/metadata/labels/team"). What is missing on the way is made; "/spec/containers/[name=web]" finds an item."""
    return {"op": "add", "path": path, "value": value}


def replace(path: str, value: Any) -> Document:
    return {"op": "replace", "path": path, "value": value}


def remove(path: str) -> Document:
    return {"op": "remove", "path": path}


def move(source: str, path: str) -> Document:
    return {"op": "move", "from": source, "path": path}


def copy(source: str, path: str) -> Document:
    return {"op": "copy", "from": source, "path": path}


def test(path: str, value: Any) -> Document:
    """Makes the whole patch fail where another value is there."""
    return {"op": "test", "path": path, "value": value}


test.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for a test


def token(key: str) -> str:
    """Writes a key as a part of a path: slashes and tildes are escaped."""
    return key.replace("~", "~0").replace("/", "~1")


@dataclass
class Selection:
    """An answer of pre_filter and pre_score: the nodes to look at, nothing more to do, what later steps get."""

    nodes: list[str] | None = None
    skip: bool | None = None
    state: Any = None


@dataclass
class Victim:
    """A pod that makes room."""

    namespace: str
    name: str
    uid: str = ""


@dataclass
class Nomination:
    """An answer of post_filter: the node, and who leaves it. The host checks that the room will do."""

    nominated: str
    evict: list[Victim] = _field(default_factory=list)


@dataclass
class Reclaim:
    """Those pods of a group that may make room, for plugins with groups: what is above keep, or of a lower priority than below."""

    group: str
    keep: Document | None = None
    below: int | None = None


@dataclass
class Reclaims:
    """An answer of post_filter in the place of a node: the host finds out which pods have to go."""

    reclaim: list[Reclaim]
    reasons: list[str] | None = None


@dataclass
class Wait:
    """What wait makes."""

    wait_seconds: float
    reasons: list[str]
    decision: str = "wait"


def wait(seconds: float, reason: str) -> Wait:
    """Holds a pod and its place; the hook is asked again within so many seconds, for 15 minutes at most."""
    return Wait(seconds, [reason])


@dataclass
class Binding:
    """An answer of bind: the annotations that the pod gets with its node."""

    annotations: dict[str, str]


@dataclass
class Plan:
    """An answer of reconcile: what there should be."""

    apply: list[Document] = _field(default_factory=list)
    patch: list[Document] | None = None
    delete: list[Document] = _field(default_factory=list)
    status: Any = None
    conditions: list[Document] = _field(default_factory=list)
    events: list[Document] = _field(default_factory=list)
    requeue_seconds: float = 0


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {_camel(f.name): v for f in _fields(value) if (v := getattr(value, f.name)) is not None}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is not for JSON: {value!r}")


_encoder = json.JSONEncoder(default=_plain, separators=(",", ":"))  # one for all: to make one takes as long as an answer


def dumps(value: Any) -> str:
    """Writes JSON, also of the dataclasses here."""
    return _encoder.encode(value)


def _gate(d: Denial) -> Any:
    return {"allowed": False, "reasons": [d.message]}


def _admission(d: Denial) -> Any:
    said = {"allowed": False, "message": d.message}
    for key in ("field", "code", "reason"):
        if (value := getattr(d, key)) is not None:
            said[key] = value
    return said


def _selection(d: Denial) -> Any:
    return {"fits": False, "reasons": [d.message], **({"unresolvable": True} if d.for_good else {})}


# The forms of refusals, by hook.
_DENIALS: dict[str, Callable[[Denial], Any]] = {
    "mutate": _admission, "validate": _admission, "convert": _admission, "validate_custom": _admission,
    "authorize": lambda d: {"decision": "deny", "reason": d.message},
    "pre_enqueue": _gate, "reserve": _gate, "pre_bind": _gate, "bind": _gate,
    "pre_filter": _selection, "filter": _selection,
    "post_filter": lambda d: {"reasons": [d.message]},
    "permit": lambda d: {"decision": "deny", "reasons": [d.message]},
    "node_admission": lambda d: {"admitted": False, "reason": d.reason or "Forbidden", "message": d.message},
}


def _score(value: Any) -> int:
    return min(100, max(0, round(value)))


_VALUES: dict[str, Callable[[Any], Any]] = {
    "queue_sort": round, "score": _score, "normalize": lambda scores: [_score(s) for s in scores],
    "unreserve": lambda _: None, "post_bind": lambda _: None,
    "reconcile": lambda plan: {"apply": [], "delete": [], "conditions": [], "events": [], "requeueSeconds": 0, **plan} if isinstance(plan, dict) else plan,
}


def _formed(name: str, answer: Any) -> Any:
    """The answer in the form of its point."""
    if isinstance(answer, Denial):
        if name not in _DENIALS:
            raise TypeError(f"deny is no answer of {name}")
        return _DENIALS[name](answer)
    if isinstance(answer, Allowance):
        if name != "authorize":
            return None
        return {"decision": "allow", **({} if answer.reason is None else {"reason": answer.reason})}
    if name in ("score", "queue_sort"):
        return _VALUES[name](answer) if answer is not None else None
    if answer is None or answer is True:
        return Plan() if name == "reconcile" else None
    if answer is False:
        raise TypeError(f'{name} answered False: answer deny("why"), so that users learn what is wrong')
    return _VALUES[name](answer) if name in _VALUES else answer


# ---- The host ----


class HostError(Exception):
    """What a host function answered with: it failed, or (refused) the entry's grants do not cover it."""

    def __init__(self, message: str, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


def _no_host(name: str, input: bytes) -> bytes:
    raise HostError(f"{name}: there is no host here; a test gives one: wasmplane.on_call(lambda name, input: ...)", refused=True)


_host: Callable[[str, bytes], bytes] = _no_host


def on_call(host: Callable[[str, bytes], bytes]) -> None:
    """Has a function answer host calls, in tests."""
    global _host
    _host = host


def call(name: str, input: Any = "") -> Any:
    """Calls a host function, which the operator has to grant; it raises HostError where that is not so, or where it fails."""
    reply = _host(name, (input if isinstance(input, str) else dumps(input)).encode())
    return json.loads(reply) if reply else None


def _bytes(name: str, count: int) -> bytes:
    return _host(name, str(count).encode())


# abi.yaml: begin host functions
class host:
    """Host functions. Each needs its grant in the plugin's entry, and raises HostError without."""

    @staticmethod
    def log(input: Any) -> None:
        """Grant: log: true. Input: `{"level": "INFO", "message": ""}`; levels `DEBUG`, `INFO`, `WARN`, `ERROR`. Reply: nothing."""
        return call("log", input)

    class clock:

        @staticmethod
        def now() -> int:
            """Grant: clock: true. Input: nothing. Reply: nanoseconds since 1970, a decimal number."""
            return call("clock.now")

    class random:

        @staticmethod
        def bytes(count: int) -> bytes:
            """Grant: random: true. Input: how many, a decimal number, at most 4096. Reply: the bytes."""
            return _bytes("random.bytes", count)

    class objects:

        @staticmethod
        def get(input: Any) -> Any:
            """Grant: read. Input: an object's name, see below. Reply: `{"resourceVersion": "7", "object": {}}`; `object` is null where there is none."""
            return call("objects.get", input)

        @staticmethod
        def list(input: Any) -> Any:
            """Grant: read. Input: a selection, see below. Reply: `{"resourceVersion": "7", "items": [{}], "more": false}`."""
            return call("objects.list", input)

    class access:

        @staticmethod
        def review(input: Any) -> Any:
            """Grant: accessReview: true. Input: the `spec` of a SubjectAccessReview. Reply: its `status`: `{"allowed": true, "denied": false, "reason": ""}`."""
            return call("access.review", input)

    class events:

        @staticmethod
        def record(input: Any) -> None:
            """Grant: events: true. Input: `{"regarding": {"apiVersion": "", "kind": "", "namespace": "", "name": "", "uid": ""}, "type": "Normal", "reason": "", "message": ""}`. Reply: nothing."""
            return call("events.record", input)

    class state:

        @staticmethod
        def get(input: Any) -> Any:
            """Grant: state: {size: 64Ki}. Input: `{"key": ""}`. Reply: `{"value": "base64"}`; null where there is none."""
            return call("state.get", input)

        @staticmethod
        def put(input: Any) -> None:
            """Grant: state: {size: 64Ki}. Input: `{"key": "", "value": "base64"}`; without `value` the key is deleted. Reply: nothing."""
            return call("state.put", input)

        @staticmethod
        def list(input: Any) -> Any:
            """Grant: state: {size: 64Ki}. Input: `{"prefix": ""}`. Reply: `{"keys": [""]}`."""
            return call("state.list", input)

    class image:

        @staticmethod
        def digest(input: Any) -> Any:
            """Grant: images: {registries: [...]}. Input: `{"image": "registry.example/team/web:1"}`. Reply: `{"digest": "sha256:..."}`."""
            return call("image.digest", input)

        @staticmethod
        def manifest(input: Any) -> Any:
            """Grant: images: {registries: [...]}. Input: the same. Reply: `{"digest": "", "mediaType": "", "manifest": {}}`: a manifest, or the index of an image for several platforms."""
            return call("image.manifest", input)

        @staticmethod
        def config(input: Any) -> Any:
            """Grant: images: {registries: [...]}. Input: the same. Reply: `{"digest": "", "config": {}}`; of linux/amd64 where there are several platforms."""
            return call("image.config", input)

    class http:

        @staticmethod
        def fetch(input: Any) -> Any:
            """Grant: http. Input: `{"method": "GET", "url": "https://", "headers": {"": ""}, "body": "text"}`, or `"bodyBytes": "base64"`. Reply: `{"status": 200, "headers": {}, "body": "text"}`, or `"bodyBytes"` where it is no UTF-8; header names in lower case."""
            return call("http.fetch", input)

    class dns:

        @staticmethod
        def lookup(input: Any) -> Any:
            """Grant: dns. Input: `{"host": ""}`. Reply: `{"ips": ["192.0.2.1"]}`, sorted."""
            return call("dns.lookup", input)

    class certificate:

        @staticmethod
        def trusted(input: Any) -> Any:
            """Grant: certificates: true. Input: `{"certificate": "PEM", "chain": "PEM", "at": "RFC 3339"}`, or `"certificateDER": "base64"`. Reply: `{"trusted": false, "reason": "why not"}`."""
            return call("certificate.trusted", input)
# abi.yaml: end host functions
