# SPDX-License-Identifier: Apache-2.0
"""The image-policy plugin: see the package's documentation. It reads what it asked for."""
from wasmplane import Plugin, Rule, add, deny, get, patch

plugin = Plugin("image-policy", "1.0.0")
fields = [
    "object.spec.containers[*].image",
    "object.spec.initContainers[*].image",
    "object.spec.containers[*].securityContext.privileged",
    "object.spec.initContainers[*].securityContext.privileged",
]
match = [Rule(["CREATE"], [""], ["pods"])]


@plugin.validate(match=match, fields=fields)
def judge(request):
    spec = request["object"]["spec"]
    for containers in (spec.get("containers", ()), spec.get("initContainers", ())):
        for c in containers:
            if not pinned(c["image"]):
                return deny(f"image {c['image']} has no fixed tag")
            if get(c, "securityContext", "privileged"):
                return deny("a container is privileged")


@plugin.mutate(match=match, fields=[*fields, "object.metadata.labels"])
def check(request):
    if refusal := judge(request):
        return refusal
    if not get(request, "object", "metadata", "labels", "checked"):
        return patch(add("/metadata/labels/checked", "yes"))


def pinned(image):
    name = image[image.rfind("/") + 1:]
    return "@" in name or (":" in name and not name.endswith(":latest"))
