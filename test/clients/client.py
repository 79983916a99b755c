"""What users of the Python client do: typed and custom objects, patches, watches, server-side apply."""

import sys
import threading
import time

from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

config.load_kube_config(sys.argv[1])
core, apps, ext, custom = client.CoreV1Api(), client.AppsV1Api(), client.ApiextensionsV1Api(), client.CustomObjectsApi()


def until(what, check, limit=120):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if check():
            print("ok:", what)
            return
        time.sleep(0.2)
    raise SystemExit("gave up waiting: " + what)


print("server", client.VersionApi().get_code().git_version)
core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name="snake")))
until("the namespace has its account", lambda: any(a.metadata.name == "default" for a in core.list_namespaced_service_account("snake").items))

seen, begun = [], threading.Event()


def follow():
    start = core.list_namespaced_config_map("snake").metadata.resource_version
    begun.set()
    for event in watch.Watch().stream(core.list_namespaced_config_map, "snake", resource_version=start, timeout_seconds=60):
        seen.append((event["type"], event["object"].metadata.name))
        if event["type"] == "DELETED":
            return


follower = threading.Thread(target=follow)
follower.start()
begun.wait()
core.create_namespaced_config_map("snake", client.V1ConfigMap(metadata=client.V1ObjectMeta(name="cm"), data={"a": "1"}))
patched = core.patch_namespaced_config_map("cm", "snake", {"data": {"a": "2"}})
assert patched.data == {"a": "2"}, patched.data
stale = core.read_namespaced_config_map("cm", "snake")
stale.metadata.resource_version = "1"
try:
    core.replace_namespaced_config_map("cm", "snake", stale)
    raise SystemExit("a stale object was taken")
except ApiException as e:
    assert e.status == 409, e
core.delete_namespaced_config_map("cm", "snake")
follower.join()
assert seen == [("ADDED", "cm"), ("MODIFIED", "cm"), ("DELETED", "cm")], seen
print("ok: a watch told of", seen)

labels = {"app": "web"}
apps.create_namespaced_deployment("snake", client.V1Deployment(
    metadata=client.V1ObjectMeta(name="web"),
    spec=client.V1DeploymentSpec(replicas=2, selector=client.V1LabelSelector(match_labels=labels), template=client.V1PodTemplateSpec(
        metadata=client.V1ObjectMeta(labels=labels), spec=client.V1PodSpec(containers=[client.V1Container(name="web", image="example.org/web:1")])))))
until("two pods are ready", lambda: (apps.read_namespaced_deployment_status("web", "snake").status.ready_replicas or 0) == 2)
apps.patch_namespaced_deployment_scale("web", "snake", {"spec": {"replicas": 3}})
until("three pods are ready", lambda: (apps.read_namespaced_deployment_status("web", "snake").status.ready_replicas or 0) == 3)

ext.create_custom_resource_definition({
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "snakes.example.org"},
    "spec": {"group": "example.org", "scope": "Namespaced", "names": {"plural": "snakes", "singular": "snake", "kind": "Snake", "listKind": "SnakeList"},
             "versions": [{"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {
                 "type": "object", "properties": {"spec": {"type": "object", "properties": {
                     "length": {"type": "integer", "minimum": 1, "default": 7}}}, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}}}]}})


def served():
    try:
        custom.list_namespaced_custom_object("example.org", "v1", "snake", "snakes")
        return True
    except ApiException as e:
        assert e.status == 404, e
        return False


until("the custom resource is served", served)
made = custom.create_namespaced_custom_object("example.org", "v1", "snake", "snakes", {
    "apiVersion": "example.org/v1", "kind": "Snake", "metadata": {"name": "kaa"}, "spec": {}})
assert made["spec"]["length"] == 7, made
try:
    custom.patch_namespaced_custom_object("example.org", "v1", "snake", "snakes", "kaa", {"spec": {"length": 0}})
    raise SystemExit("a snake of no length was taken")
except ApiException as e:
    assert e.status == 422 and "spec.length" in e.body, e
print("ok: custom resources are defaulted and validated")
core.delete_namespace("snake")


def gone():
    try:
        core.read_namespace("snake")
        return False
    except ApiException as e:
        return e.status == 404


until("the namespace is gone with everything in it", gone)
