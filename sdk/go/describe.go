// SPDX-License-Identifier: Apache-2.0

package wasmplane

// describe writes the manifest (sdk/spec, section 3).
func describe() []byte {
	p := registered
	if p == nil {
		return nil
	}
	var hooks []Object
	add := func(op int, fields []string) Object {
		h := Object{"op": op, "point": points[op], "encoding": "flat", "fields": fields}
		hooks = append(hooks, h)
		return h
	}
	if p.Mutate != nil {
		p.Mutate.describe(add(opMutate, p.Mutate.fields()))
	}
	if p.Validate != nil {
		p.Validate.describe(add(opValidate, p.Validate.fields()))
	}
	if p.Authorize != nil {
		add(opAuthorize, p.Authorize.Fields)["pure"] = p.Authorize.Pure
	}
	p.describeScheduling(add)
	if p.Table != nil {
		p.Table.describe(add(opTable, nil))
	}
	if p.Reconcile != nil {
		p.Reconcile.describe(add(opReconcile, p.Reconcile.Fields))
	}
	if p.NodeAdmission != nil {
		add(opNodeAdmission, p.NodeAdmission.Fields)
	}
	if p.Convert != nil {
		add(opConvert, p.Convert.fields())["match"] = rules(p.Convert.Match)
	}
	if p.ValidateCustom != nil {
		add(opValidateCustom, p.ValidateCustom.fields())["match"] = rules(p.ValidateCustom.Match)
	}
	manifest := Object{
		"abi": abiVersion, "name": p.Name, "version": p.Version,
		"settings": p.Settings != nil, "hooks": hooks, "needs": p.Needs,
	}
	if p.SettingsSchema != "" {
		manifest["settingsSchema"] = rawJSON(p.SettingsSchema)
	}
	if p.Groups != nil {
		if g := p.Groups(); g != nil {
			manifest["groups"] = g.object()
		}
	}
	return manifest.append(nil)
}

func (a *Admission) describe(h Object) {
	h["match"] = rules(a.Match)
	if a.SideEffects != "" {
		h["sideEffects"] = string(a.SideEffects)
	}
	if len(a.Alternatives) > 0 {
		all := Object{}
		for alias, places := range a.Alternatives {
			all[alias] = places
		}
		h["alternatives"] = all
	}
}

func rules(list []Rule) []Object {
	var out []Object
	for _, r := range list {
		out = append(out, Object{"operations": r.Operations, "apiGroups": r.Groups, "apiVersions": r.Versions, "resources": r.Resources})
	}
	return out
}
