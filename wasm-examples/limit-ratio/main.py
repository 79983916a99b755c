# SPDX-License-Identifier: Apache-2.0
"""The limit-ratio plugin refuses containers whose limit is many times what they request."""
from fractions import Fraction
import re

from wasmplane import Cause, Decision, Plugin, Rule, get

plugin = Plugin("limit-ratio", "1.0.0")
most: dict[str, Fraction] = {}  # times, by resource

UNITS = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)}
UNITS |= {unit: Fraction(1000**i) for i, unit in enumerate(["", "k", "M", "G", "T", "P", "E"])}
UNITS |= {unit + "i": Fraction(1024**i) for i, unit in enumerate(["K", "M", "G", "T", "P", "E"], 1)}
QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i))?")


def amount(quantity) -> Fraction:
    """A quantity of Kubernetes, exactly."""
    found = QUANTITY.fullmatch(str(quantity))
    if not found:
        raise ValueError(f"{quantity!r} is no quantity")
    number, exponent, unit = found.groups()
    return Fraction(number + (exponent or "")) * UNITS[unit or ""]


@plugin.settings
def settings(values):
    most.clear()
    for resource, times in values.get("most", {}).items():
        if not isinstance(times, (int, float)) or times < 1:
            return f"most.{resource} is {times!r}: expected a number of 1 or more"
        most[resource] = Fraction(str(times))
    if not most:
        return "most is missing, such as {cpu: 10, memory: 2}"


@plugin.validate(
    match=[Rule(operations=["CREATE", "UPDATE"], resources=["*"])],
    fields=["object.@podSpec.containers[*].name", "object.@podSpec.containers[*].resources"],
)
def ratio(request):
    causes = []
    for i, container in enumerate(get(request, "object", "@podSpec", "containers", default=[])):
        for resource, times in most.items():
            limit = get(container, "resources", "limits", resource)
            requested = get(container, "resources", "requests", resource)
            if limit is None or requested is None or amount(limit) <= times * amount(requested):
                continue
            causes.append(Cause(
                f"spec.containers[{i}].resources.limits.{resource}",
                f"container {container['name']} requests {requested}, and may have {limit}: at most {float(times):g} times the request is allowed",
            ))
    if causes:
        return Decision(allowed=False, message=causes[0].message, field=causes[0].field)
