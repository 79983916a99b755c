package policy

# For Open Policy Agent: the rule main answers an AdmissionReview.

main := {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}

response := {"allowed": false, "status": {"message": concat("; ", sort(deny)), "code": 418}} if count(deny) > 0

response := {"allowed": true, "warnings": [sprintf("%s in %v", [input.request.name, data.zones])], "patchType": "JSONPatch", "patch": base64.encode(json.marshal(changes))} if {
	count(deny) == 0
	data.label
}

changes := [{"op": "add", "path": "/metadata/labels/label", "value": data.label}]

response := {"allowed": true} if {
	count(deny) == 0
	not data.label
}

deny contains msg if {
	some c in input.request.object.spec.containers
	endswith(c.image, ":latest")
	not data.latest
	msg := sprintf("container %q uses %s (%d of %d)", [c.name, c.image, 1, count(input.request.object.spec.containers)])
}

deny contains msg if {
	data.flood
	some i in numbers.range(1, 1000000)
	regex.replace(sprintf("%d", [i]), "(a+)+$", "b") == "x"
	msg := "never"
}

deny contains "the build is too old" if {
	v := input.request.object.metadata.annotations.version
	semver.compare(v, "1.2.0") < 0
}

allow := count(deny) == 0
