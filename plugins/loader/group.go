// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
)

// withMembers puts the members of groups before their groups: they are loaded like
// any plugin, and asked by the group only.
func withMembers(entries []manifest.Entry) []manifest.Entry {
	var out []manifest.Entry
	for _, e := range entries {
		if e.MemberOf != "" {
			continue // made anew from its group
		}
		members := e.MemberEntries()
		for _, name := range slices.Sorted(maps.Keys(members)) {
			out = append(out, members[name])
		}
		out = append(out, e)
	}
	return out
}

// prepareGroup compiles a group's expression, and waits for its members.
func prepareGroup(ctx context.Context, j *load) (*point.Version, *pointadmission.Verdicts, error) {
	verdicts, err := pointadmission.CompileGroup(j.entry.Group)
	v := point.NewGroup(j.entry)
	if err == nil {
		err = pointadmission.Check(v)
	}
	if err != nil {
		return nil, nil, err
	}
	j.progress("waiting for its members")
	for _, m := range j.members {
		select {
		case <-m.done:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
	return v, verdicts, nil
}

// join gives groups their members' plugins. A group that failed before it was ever
// loaded fails by its policy, like any plugin.
func (l *Loader) join(slots []*slot) {
	byName := map[string]*slot{}
	for _, s := range slots {
		byName[s.entry.Name] = s
	}
	for i, s := range slots {
		if s.entry.Group == nil || s.unused {
			continue
		}
		s = s.with(s.entry) // others may be reading the one that is published
		slots[i] = s
		if s.verdicts == nil {
			s.adapters = adapters{admission: pointadmission.New(s.plugin, l.cluster())}
			continue
		}
		inForce := s.plugin.Current().Entry
		members := map[string]*point.Plugin{}
		for name, e := range inForce.MemberEntries() {
			if m := byName[e.Name]; m != nil {
				members[name] = m.plugin
			} else { // the group's new version could not be loaded and has other members
				members[name] = point.NewPlugin(e.Name, l.metrics)
			}
		}
		s.adapters = adapters{admission: pointadmission.NewGroup(s.plugin, s.verdicts, members, l.cluster())}
	}
}

// join makes a group's status out of its members'.
func (st *Status) join(loaded bool, all []*slot) {
	st.Ready, st.Points = loaded, []abi.Point{abi.AdmissionValidate}
	var errs []error
	for _, m := range all {
		if m.entry.MemberOf != st.Name {
			continue
		}
		member := m.status()
		st.Ready = st.Ready && member.Ready
		if member.Error != "" {
			errs = append(errs, fmt.Errorf("member %s: %s", member.Name, member.Error))
		}
	}
	if err := errors.Join(errs...); err != nil && st.Error == "" {
		st.Error = err.Error()
	}
}
