// SPDX-License-Identifier: Apache-2.0

package strategic

import (
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// The directives of a patch (the API conventions, "Strategic Merge Patch").
const (
	directive     = "$patch"
	deletes       = "delete"
	replaces      = "replace"
	merges        = "merge"
	retainKeys    = "retainKeys"
	retainedKeys  = "$" + retainKeys
	deletedValues = "$deleteFromPrimitiveList"
	elementOrder  = "$setElementOrder"
)

// maxLooks is how many entries of lists a merge looks at. Each counts once, and once more for each entry of the patch's that has the same
// key as one before and lists of its own: only such patches come to more than the lists have. It is about half a second of a processor.
const maxLooks = 500_000

// merge is one strategic merge. It makes what upstream's makes, and has its errors, but looks for the entries of lists by
// their keys, where upstream compares each with all others: one variable of a container that has 9,000 took upstream four
// seconds, all of it to find out in which order they are. What upstream panics at (null in a list, a key that is a map) is an error here.
type merge struct{ looks int }

var (
	errKey    = errors.New("a merge key, or a value of a list that is merged, is a map or a list")
	errLooks  = apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the strategic merge patch has entries with the same key, for which more than %d entries of lists would be looked at; send a merge patch, a JSON patch or the whole object", maxLooks))
	errNoList = errors.New("no elements in any of the given slices")
)

// MergeJSON merges a patch into the JSON of an object that has no type of this API's version; o says how its lists are merged.
func MergeJSON(before, patch []byte, o any) ([]byte, error) {
	trees := [2]map[string]any{}
	for i, data := range [][]byte{before, patch} {
		trees[i] = map[string]any{}
		if json.Unmarshal(data, &trees[i]) != nil {
			return nil, mergepatch.ErrBadJSONDoc
		}
	}
	merged, err := mergeTrees(trees[0], trees[1], o)
	if err != nil {
		return nil, err
	}
	return json.Marshal(merged)
}

// mergeTrees changes both trees, and what it returns has parts of both.
func mergeTrees(original, patch map[string]any, o any) (map[string]any, error) {
	of, err := strategicpatch.NewPatchMetaFromStruct(o)
	if err != nil {
		return nil, err
	}
	return (&merge{}).maps(original, patch, of)
}

func (m *merge) maps(original, patch map[string]any, of strategicpatch.LookupPatchMeta) (map[string]any, error) {
	switch is, ok := patch[directive]; {
	case !ok:
	case is == replaces:
		delete(patch, directive)
		return patch, nil
	case is == deletes:
		return map[string]any{}, nil
	default:
		return nil, mergepatch.ErrBadPatchType(is, patch)
	}
	if original == nil {
		original = map[string]any{}
	}
	if err := retain(original, patch); err != nil {
		return nil, err
	}
	for name, order := range patch {
		if strings.HasPrefix(name, elementOrder) {
			delete(patch, name)
			if err := m.ordered(original, patch, name, order, of); err != nil {
				return nil, err
			}
		}
	}
	for name, value := range patch {
		if err := m.member(original, name, value, of); err != nil {
			return nil, err
		}
	}
	return original, nil
}

// retain takes away the members that a patch says nothing of, if it lists those that stay.
func retain(original, patch map[string]any) error {
	retained, ok := patch[retainedKeys]
	if !ok {
		return nil
	}
	delete(patch, retainedKeys)
	list, ok := retained.([]any)
	if !ok {
		return mergepatch.ErrBadPatchFormatForRetainKeys
	}
	stay := map[string]bool{}
	for _, v := range list {
		name, ok := v.(string)
		if _, err := hashable(v); err != nil {
			return mergepatch.ErrBadPatchFormatForRetainKeys
		}
		if ok {
			stay[name] = true
		}
	}
	for name, value := range patch {
		if value != nil && !stay[name] && !strings.HasPrefix(name, deletedValues) && !strings.HasPrefix(name, elementOrder) {
			return mergepatch.ErrBadPatchFormatForRetainKeys
		}
	}
	for name := range original {
		if !stay[name] {
			delete(original, name)
		}
	}
	return nil
}

// member merges a member of a patch into a map.
func (m *merge) member(original map[string]any, name string, value any, of strategicpatch.LookupPatchMeta) error {
	deleting := strings.HasPrefix(name, deletedValues)
	if deleting {
		list, err := listNamed(name, deletedValues, mergepatch.ErrBadPatchFormatForPrimitiveList)
		if err != nil {
			return err
		}
		if list != "" {
			name = list
		}
	}
	if value == nil {
		delete(original, name)
		return nil
	}
	was, ok := original[name]
	if !ok || reflect.TypeOf(was) != reflect.TypeOf(value) {
		if !deleting {
			put(original, name, value)
		}
		return nil
	}
	var err error
	switch was := was.(type) {
	case map[string]any:
		original[name], err = m.below(was, value.(map[string]any), name, of)
	case []any:
		below, meta, lookErr := of.LookupPatchMetadataForSlice(name)
		if lookErr != nil {
			return lookErr
		}
		original[name], err = m.lists(was, value.([]any), below, meta, deleting)
	default:
		original[name] = value
	}
	return err
}

// below merges a map in a map.
func (m *merge) below(original, patch map[string]any, name string, of strategicpatch.LookupPatchMeta) (map[string]any, error) {
	below, meta, err := of.LookupPatchMetadataForStruct(name)
	if err != nil {
		return nil, err
	}
	if strategy, err := strategyOf(meta); err != nil || strategy == replaces {
		return patch, err
	}
	return m.maps(original, patch, below)
}

// put sets a member that is new, or was of another type.
func put(original map[string]any, name string, value any) {
	withoutNulls(value)
	if kept, ok := withoutDirectives(value); ok {
		original[name] = kept
	} else {
		delete(original, name)
	}
}

// withoutNulls takes the members that are null out of all maps in a value.
func withoutNulls(value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, below := range v {
			if below == nil {
				delete(v, name)
			} else {
				withoutNulls(below)
			}
		}
	case []any:
		for _, below := range v {
			withoutNulls(below)
		}
	}
}

// withoutDirectives takes the maps with a directive out of a value; ok = false: it is one.
func withoutDirectives(value any) (kept any, ok bool) {
	switch v := value.(type) {
	case map[string]any:
		if _, is := v[directive]; is {
			return nil, false
		}
		for name, below := range v {
			if kept, ok := withoutDirectives(below); ok {
				v[name] = kept
			} else {
				delete(v, name)
			}
		}
	case []any:
		list := make([]any, 0, len(v))
		for _, below := range v {
			if kept, ok := withoutDirectives(below); ok {
				list = append(list, kept)
			}
		}
		return list, true
	}
	return value, true
}

// listNamed is the list that a directive such as $setElementOrder/containers is about.
func listNamed(name, prefix string, wrong error) (string, error) {
	before, list, ok := strings.Cut(name, "/")
	if !ok || before != prefix {
		return "", wrong
	}
	return list, nil
}

// strategyOf is how values of a field are merged, but for keys that are retained.
func strategyOf(meta strategicpatch.PatchMeta) (string, error) {
	switch s := meta.GetPatchStrategies(); {
	case len(s) == 0:
		return "", nil
	case len(s) == 1 && s[0] == retainKeys:
		return "", nil
	case len(s) == 1:
		return s[0], nil
	case len(s) == 2 && s[0] == retainKeys:
		return s[1], nil
	case len(s) == 2 && s[1] == retainKeys:
		return s[0], nil
	default:
		return "", fmt.Errorf("unexpected patch strategy: %v", s)
	}
}

// ordered merges a list whose order the patch gives.
func (m *merge) ordered(original, patch map[string]any, member string, order any, of strategicpatch.LookupPatchMeta) error {
	by, err := asList(order)
	if err != nil {
		return err
	}
	name, err := listNamed(member, elementOrder, mergepatch.ErrBadPatchFormatForSetElementOrderList)
	if err != nil {
		return err
	}
	var was, sent []any
	live, found := original[name]
	if found {
		if was, err = asList(live); err != nil {
			return err
		}
	}
	change, changed := patch[name]
	if changed {
		if sent, err = asList(change); err != nil {
			return err
		}
	}
	below, meta, err := of.LookupPatchMetadataForSlice(name)
	if err != nil {
		return err
	}
	key := meta.GetPatchMergeKey()
	if err := agree(sent, by, key); err != nil {
		return err
	}
	merged := was
	switch {
	case !found && !changed:
		return nil
	case !found:
		kept, _ := withoutDirectives(sent)
		merged = kept.([]any)
	case changed:
		if merged, err = m.lists(was, sent, below, meta, false); err != nil {
			return err
		}
	}
	if err := m.look(len(was) + len(sent) + len(by)); err != nil {
		return err
	}
	kind, err := kindOf(was, sent)
	if err != nil {
		return err
	}
	if original[name], err = sorted(merged, by, was, key, kind); err != nil {
		return err
	}
	delete(patch, name)
	return nil
}

// agree checks that the entries of a patch are in the order that it gives.
func agree(sent, by []any, key string) error {
	if len(sent) == 0 || len(by) == 0 {
		return nil
	}
	keep := sent
	if key != "" {
		var err error
		if keep, _, err = deletions(sent); err != nil {
			return err
		}
	}
	i := 0
	for j := 0; i < len(keep) && j < len(by); {
		if entry, ok := keep[i].(map[string]any); ok {
			if _, ok := entry[directive]; ok {
				i++
				continue
			}
		}
		a, err := identity(keep[i], key)
		if err != nil {
			return err
		}
		b, err := identity(by[j], key)
		if err != nil {
			return err
		}
		if a == b {
			i++
		}
		j++
	}
	if i < len(keep) {
		return fmt.Errorf("The order in patch list:\n%s\n doesn't match %s list:\n%s\n", short(sent), elementOrder, short(by)) //nolint:staticcheck,revive // upstream's words
	}
	return nil
}

// short is the beginning of what an error names, which may be all of a patch.
func short(v any) string {
	const most = 1000
	text := fmt.Sprint(v)
	if len(text) > most {
		return text[:most] + " ..."
	}
	return text
}

func (m *merge) look(entries int) error {
	if m.looks += entries; m.looks > maxLooks {
		return errLooks
	}
	return nil
}

// lists merges two lists, or takes what a patch deletes out of one.
func (m *merge) lists(
	original, patch []any, below strategicpatch.LookupPatchMeta, meta strategicpatch.PatchMeta, deleting bool,
) ([]any, error) {
	strategy, err := strategyOf(meta)
	switch {
	case err != nil:
		return nil, err
	case strategy != merges && !deleting:
		return patch, nil
	case len(original) == 0 && len(patch) == 0:
		return original, nil
	}
	if err := m.look(len(original) + len(patch)); err != nil {
		return nil, err
	}
	kind, err := kindOf(original, patch)
	if err != nil {
		return nil, err
	}
	key, merged := meta.GetPatchMergeKey(), []any(nil)
	switch {
	case kind != reflect.Map && deleting:
		return without(original, patch), nil
	case kind != reflect.Map:
		merged = distinct(original, patch)
	case key == "":
		return nil, fmt.Errorf("cannot merge lists without merge key for %s", below.Name())
	default:
		if original, patch, err = directed(original, patch, key); err != nil {
			return nil, err
		}
		if merged, err = m.entries(original, patch, key, below); err != nil {
			return nil, err
		}
	}
	return sorted(merged, patch, original, key, kind)
}

// kindOf is the one kind that all entries of two lists have.
func kindOf(lists ...[]any) (reflect.Kind, error) {
	var one reflect.Type
	for _, list := range lists {
		for _, v := range list {
			is := reflect.TypeOf(v)
			switch {
			case is != nil && one == nil && is.Kind() == reflect.Slice:
				return 0, mergepatch.ErrNoListOfLists
			case is == nil || one != nil && is != one:
				return 0, fmt.Errorf("list element types are not identical: %s", short(lists))
			}
			one = is
		}
	}
	if one == nil {
		return 0, errNoList
	}
	return one.Kind(), nil
}

// without is a list of values without those of another.
func without(list, away []any) []any {
	gone := make(map[any]bool, len(away))
	for _, v := range away {
		gone[v] = true
	}
	out := make([]any, 0, len(list))
	for _, v := range list {
		if !gone[v] {
			out = append(out, v)
		}
	}
	return out
}

// distinct are the values of two lists, each once.
func distinct(lists ...[]any) (out []any) {
	seen := map[any]bool{}
	for _, list := range lists {
		for _, v := range list {
			if !seen[v] {
				seen[v] = true
				out = append(out, v)
			}
		}
	}
	return out
}

// directed carries out the directives among the entries of a patch, and returns what is left of both lists.
func directed(original, patch []any, key string) (left, entries []any, err error) {
	gone, replaced := map[any]bool{}, false
	entries = []any{}
	for _, v := range patch {
		entry := v.(map[string]any)
		switch is, ok := entry[directive]; {
		case !ok:
			entries = append(entries, v)
		case is == deletes:
			id, err := identity(v, key)
			if err != nil {
				return nil, nil, err
			}
			gone[id] = true
		case is == replaces:
			replaced = true
		case is == merges:
			return nil, nil, errors.New("merging lists cannot yet be specified in the patch")
		default:
			return nil, nil, mergepatch.ErrBadPatchType(is, entry)
		}
	}
	if replaced {
		return entries, nil, nil
	}
	if len(gone) == 0 {
		return original, entries, nil
	}
	left = make([]any, 0, len(original))
	for _, v := range original {
		if id, err := identity(v, key); err != nil || !gone[id] {
			left = append(left, v)
		}
	}
	return left, entries, nil
}

// entries merges the entries of a patch into those that have the same key, and appends the others.
func (m *merge) entries(original, patch []any, key string, below strategicpatch.LookupPatchMeta) ([]any, error) {
	at := make(map[any]int, len(original)+len(patch))
	for i, v := range original {
		if id, err := identity(v, key); err == nil {
			if _, ok := at[id]; !ok {
				at[id] = i
			}
		}
	}
	for _, v := range patch {
		id, err := identity(v, key)
		if err != nil {
			return nil, err
		}
		i, ok := at[id]
		if !ok {
			at[id] = len(original)
			original = append(original, v)
			continue
		}
		if original[i], err = m.maps(original[i].(map[string]any), v.(map[string]any), below); err != nil {
			return nil, err
		}
	}
	return original, nil
}

// identity is the key of an entry, or the entry itself where lists of its kind have no key.
func identity(v any, key string) (any, error) {
	if key == "" {
		return hashable(v)
	}
	entry, err := asMap(v)
	if err != nil {
		return nil, err
	}
	id, ok := entry[key]
	if !ok {
		return nil, mergepatch.ErrNoMergeKey(entry, key)
	}
	return hashable(id)
}

func hashable(v any) (any, error) {
	switch v.(type) {
	case map[string]any, []any:
		return nil, errKey
	}
	return v, nil
}

func asMap(v any) (map[string]any, error) {
	entry, ok := v.(map[string]any)
	if !ok {
		return nil, mergepatch.ErrBadArgType(entry, v)
	}
	return entry, nil
}

func asList(v any) ([]any, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, mergepatch.ErrBadArgType(list, v)
	}
	return list, nil
}

// deletions divides the entries of a list by whether they are directives to delete.
func deletions(list []any) (keep, gone []any, err error) {
	for _, v := range list {
		entry, err := asMap(v)
		switch {
		case err != nil:
			return nil, nil, err
		case entry[directive] == deletes:
			gone = append(gone, v)
		default:
			keep = append(keep, v)
		}
	}
	return keep, gone, nil
}

// sorted are merged entries in their order: those that by has in its order, the others in that of the object as it was, which
// they keep among the first ones as well as they can.
func sorted(merged, by, was []any, key string, kind reflect.Kind) ([]any, error) {
	named, err := places(by, key)
	if err != nil {
		return nil, err
	}
	before, err := places(was, key)
	if err != nil {
		return nil, err
	}
	var first, others []any
	for _, v := range merged {
		id, err := identity(v, key)
		if err != nil {
			return nil, err
		}
		if _, ok := named[id]; ok {
			first = append(first, v)
		} else {
			others = append(others, v)
		}
	}
	if first, err = sortBy(named, first, key, kind); err != nil {
		return nil, err
	}
	if others, err = sortBy(before, others, key, kind); err != nil {
		return nil, err
	}
	return interleave(others, first, before, key), nil
}

// places are the first places of keys in a list.
func places(list []any, key string) (map[any]int, error) {
	at := make(map[any]int, len(list))
	for i, v := range list {
		id, err := identity(v, key)
		if err != nil {
			return nil, err
		}
		if _, ok := at[id]; !ok {
			at[id] = i
		}
	}
	return at, nil
}

// sortBy sorts entries by their places. Where one has no place the order is upstream's, which has no meaning.
func sortBy(at map[any]int, list []any, key string, kind reflect.Kind) ([]any, error) {
	var gone []any
	if kind == reflect.Map {
		var err error
		if list, gone, err = deletions(list); err != nil {
			return nil, err
		}
	}
	sort.SliceStable(list, func(i, j int) bool {
		a, ok := place(at, list[i], key)
		if !ok {
			return true
		}
		b, ok := place(at, list[j], key)
		return !ok || a < b
	})
	return append(list, gone...), nil
}

func place(at map[any]int, v any, key string) (int, bool) {
	id, err := identity(v, key)
	if err != nil {
		return 0, false
	}
	i, ok := at[id]
	return i, ok
}

// interleave puts each of left in front of the first of right that came behind it before.
func interleave(left, right []any, before map[any]int, key string) []any {
	out := make([]any, 0, len(left)+len(right))
	for len(left) > 0 && len(right) > 0 {
		l, ok := place(before, left[0], key)
		r, also := place(before, right[0], key)
		if ok && also && l < r {
			out, left = append(out, left[0]), left[1:]
		} else {
			out, right = append(out, right[0]), right[1:]
		}
	}
	return append(append(out, left...), right...)
}
