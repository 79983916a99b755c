package k8suniquehost

# For Gatekeeper: every violation refuses. Hosts have to be on the list, and may be
# used by one pod only.

violation contains {"msg": msg} if {
	image := input.review.object.spec.containers[_].image
	not startswith(image, input.parameters.registry)
	msg := sprintf("image <%v> comes from another registry than <%v>", [image, input.parameters.registry])
}

violation contains {"msg": "deletion is forbidden"} if {
	input.review.operation == "DELETE"
	input.review.object.metadata.labels.keep
}

violation contains {"msg": msg} if {
	input.parameters.unique
	other := data.inventory.namespace[ns]["v1"].Pod[name]
	other.spec.hostname == input.review.object.spec.hostname
	msg := sprintf("host name is taken by %s/%s", [ns, name])
}

violation contains {"msg": msg, "details": {"team": team}} if {
	team := data.inventory.cluster["v1"].Namespace[input.review.namespace].metadata.labels.team
	not input.parameters.teams[team]
	msg := sprintf("team %s may not", [team])
}
