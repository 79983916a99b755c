# SPDX-License-Identifier: Apache-2.0
"""The conformance guest in Python: it does what the guests in other languages do."""
from wasmplane import (
    Binding, Cause, Decision, Groups, HostError, Nomination, Plan, Plugin, Reclaim, Reclaims, Rule, Selection, Victim, Watch,
    add, allow, call, deny, dumps, fail, get, invalid, move, patch, remove, replace, token, wait,
)

plugin = Plugin(
    "conformance", "1.2.3", groups=Groups("pod.metadata.namespace", {"red": "a", "crimson": "a"}, 'b "c"'),
    settings_schema={"required": ["key"]},
)
values = {}


@plugin.settings
def settings(given):
    values.clear()
    values.update(given)
    return given.get("refuse")


@plugin.mutate(match=[Rule(["CREATE"], [""], ["pods"], ["v1"])])
def mutate(document):
    if get(document, "whole"):
        return Decision(object={"kind": "Pod", "was": document["whole"]})
    answer = patch(
        add("/echo", document),
        add("/metadata/labels/" + token(values["key"]), dumps(values)),
        replace("/spec/replicas", get(document, "spec", "replicas", default=0) + 1),
        remove("/spec/paused"),
    )
    answer.warnings = ['careful "now"\n']
    answer.audit_annotations = {"key": values["key"]}
    return answer


@plugin.validate(
    fields=["object.metadata.name", "object.metadata.labels", "operation"], side_effects="NoneOnDryRun",
    alternatives={"@size": {"Deployment": "spec.replicas", "*": "spec.size"}},
)
def validate(request):
    match get(request, "operation"):
        case "CONNECT":
            fail("cannot tell")
        case "DELETE":
            return deny("in use", reason="Conflict")
        case "CREATE":
            return deny("not " + request["object"]["metadata"]["name"], field="metadata.name", code=422)


@plugin.convert(match=[Rule(api_groups=["example.com"], resources=["endpoints"])], fields=["object.spec.hostPort", "desiredAPIVersion"])
def convert(request):
    if not get(request, "object", "spec", "hostPort"):
        return deny("no hostPort")
    return patch(move("/spec/hostPort", "/spec/address"), add("/spec/as", request["desiredAPIVersion"]))


@plugin.validate_custom(fields=["object.spec.port"])
def port(request):
    if request["object"]["spec"]["port"] > 9:
        return invalid(Cause("spec.port", 'too "high"'), Cause("spec.name", "missing"))


@plugin.authorize(pure=True, fields=["user", "resourceAttributes.namespace"])
def authorize(access):
    if access["user"] == "root":
        return allow("root may")
    if get(access, "resourceAttributes", "namespace") == "closed":
        return deny("closed to " + access["user"])


@plugin.pre_enqueue(fields=["pod.metadata.labels"], events=["podChanged"])
def gate(request):
    if why := get(request, "pod", "metadata", "labels", "gate"):
        return deny("waits for " + why)


@plugin.queue_sort(fields=["pod.spec.priority"])
def rank(request):
    return 10 * request["pod"]["spec"]["priority"]


@plugin.pre_filter(fields=["pod.metadata.name", "nodes"])
def select(request):
    match request["pod"]["metadata"]["name"]:
        case "none":
            return deny("no node for none")
        case "never":
            return deny("never runs", for_good=True)
        case "skip":
            return Selection(skip=True)
        case "state":
            return Selection(state={"zone": "a"})
        case "narrow":
            return Selection(nodes=request["nodes"][:1])
        case "nowhere":
            return Selection(nodes=[])


@plugin.filter(fields=["node.metadata.name"], events=["nodeAdded", "podRemoved"])
def fits(request):
    name = request["node"]["metadata"]["name"]
    if name.startswith("worst"):
        return deny("node(s) were worst", for_good=True)
    if name.startswith("bad"):
        return deny("node(s) were bad")


@plugin.post_filter(fields=["pod.metadata.name", "failed[*].node"], pure=True)
def make_room(request):
    match request["pod"]["metadata"]["name"]:
        case "owner":
            return Reclaims([Reclaim("a", keep={"milliCPU": 64000, "scalar": {"example.com/gpu": 8}}), Reclaim('b "c"', below=-100)])
        case "urgent":
            return Nomination(request["failed"][0]["node"], [Victim("default", "victim", "u1")])
    return deny("nothing to evict")


@plugin.pre_score(fields=["nodes"])
def prepare(request):
    return Selection(skip=True) if len(request["nodes"]) == 1 else Selection(state=len(request["nodes"]))


@plugin.normalize(fields=["state"])
def normalize(request):
    return [s * request["state"] for s in request["scores"]]


@plugin.reserve(fields=["nodeName"])
def reserve(chosen):
    if chosen["nodeName"] == "full":
        return deny("node full is full")


@plugin.unreserve(fields=["nodeName"])
@plugin.post_bind(fields=["nodeName"])
def told(chosen):
    if chosen["nodeName"] == "broken":
        fail("it broke")


@plugin.permit(fields=["nodeName", "waitedSeconds"])
def permit(chosen):
    if chosen["nodeName"] == "hold" and chosen["waitedSeconds"] < 5:
        return wait(2.5, "hold on")
    if chosen["nodeName"] == "no":
        return deny("no")


@plugin.pre_bind(fields=["nodeName"])
def ready(chosen):
    if chosen["nodeName"] == "unready":
        return deny("not ready")


@plugin.bind(fields=["nodeName"])
def bind(chosen):
    match chosen["nodeName"]:
        case "plain":
            return Binding({})
        case "noted":
            return Binding({"example.com/by": 'me "x"'})
        case "refused":
            return deny("not there")


@plugin.score(fields=["pods"])
def score(request):
    pods = request["pods"]
    if pods == 7:
        return len(call("test.echo", {"n": 3000})["text"]) / 100
    if pods != 8:
        return 3 * pods
    try:
        return call("test.none")
    except HostError as e:
        return 99 if e.refused else 98


@plugin.reconcile(
    primary=Watch("v1", "deployments", "Deployment", group="apps", selector="app=web"), owned=[Watch("v1", "services", "Service")],
)
def reconcile(request):
    name = request["name"]
    if request["primary"] is None:
        return Plan(delete=[{"apiVersion": "v1", "kind": "Service", "namespace": request["namespace"], "name": name}])
    if name == "db":
        change = [{"op": "test", "path": "/spec/replicas", "value": 3}, replace("/spec/replicas", 0)]
        return Plan(
            patch=[{"apiVersion": "apps/v1", "kind": "Deployment", "name": "db", "subresource": "scale", "patch": change}],
            delete=[{
                "apiVersion": "v1", "kind": "Service", "name": "old", "uid": "u-1", "resourceVersion": "7",
                "propagationPolicy": "Foreground",
            }],
        )
    if name == "broken":
        fail(f'broken "{name}"')
    return Plan(
        apply=[{"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": request["primary"]["spec"]}],
        status={"seen": True},
        conditions=[{"type": "Ready", "status": "True", "reason": "Made", "message": "made it"}],
        events=[{"type": "Normal", "reason": "Made", "message": "made " + name}],
        requeue_seconds=30,
    )


@plugin.node_admission(fields=["pod.spec.hostNetwork"])
def admit(request):
    if get(request, "pod", "spec", "hostNetwork"):
        return deny("no", reason="HostNetwork")
