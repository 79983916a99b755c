package wasmplane

// describe writes the manifest (sdk/spec, section 3).
func describe() []byte {
	p := registered
	if p == nil {
		return nil
	}
	var hooks []Object
	add := func(op int, point string, fields []string) Object {
		h := Object{"op": op, "point": point, "encoding": "flat", "fields": fields}
		hooks = append(hooks, h)
		return h
	}
	if p.Mutate != nil {
		add(opMutate, "admission.mutate", p.Mutate.fields())["match"] = rules(p.Mutate.Match)
	}
	if p.Validate != nil {
		add(opValidate, "admission.validate", p.Validate.fields())["match"] = rules(p.Validate.Match)
	}
	if p.Authorize != nil {
		add(opAuthorize, "authorization", p.Authorize.Fields)
	}
	if p.Filter != nil {
		add(opFilter, "scheduling.filter", p.Filter.Fields)
	}
	if p.Score != nil {
		add(opScore, "scheduling.score", p.Score.Fields)
	}
	if p.Table != nil {
		p.Table.describe(add(opTable, "scheduling.table", nil))
	}
	if p.Reconcile != nil {
		p.Reconcile.describe(add(opReconcile, "reconcile", p.Reconcile.Fields))
	}
	if p.NodeAdmission != nil {
		add(opNodeAdmission, "nodeadmission", p.NodeAdmission.Fields)
	}
	if p.Convert != nil {
		add(opConvert, "customresource.convert", p.Convert.fields())["match"] = rules(p.Convert.Match)
	}
	if p.ValidateCustom != nil {
		add(opValidateCustom, "customresource.validate", p.ValidateCustom.fields())["match"] = rules(p.ValidateCustom.Match)
	}
	return Object{
		"abi": 1, "name": p.Name, "version": p.Version,
		"settings": p.Settings != nil, "hooks": hooks, "needs": p.Needs,
	}.append(nil)
}

func rules(list []Rule) []Object {
	var out []Object
	for _, r := range list {
		out = append(out, Object{"operations": r.Operations, "apiGroups": r.Groups, "apiVersions": r.Versions, "resources": r.Resources})
	}
	return out
}
