// SPDX-License-Identifier: Apache-2.0

package ownership

import (
	"fmt"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

// MaxSiblings is how many members one list or map of an object may have for its fields to
// be managed. Upstream's sets are sorted slices, into which each member is inserted: the
// time grows with the square, and this many take a second or two. 60,000 environment
// variables, which fit into a body of a MiB, take twenty.
const MaxSiblings = 20_000

// MaxEntries is how many entries all lists of an object may have together: each is a path of its own in the sets, and 100,000
// environment variables in a hundred containers take two seconds.
const MaxEntries = 50_000

// MaxManagers is how many entries managed fields may have, each of which is read and
// compared with others: 15,000, which a client may send, take twenty seconds.
const MaxManagers = 1000

// MaxFieldBytes is how long the encoded sets of fields may be together, which a client
// may send in an order that takes the square of their number to sort.
const MaxFieldBytes = 512 << 10

// Bound keeps a manager from objects whose fields would cost more than a request may.
// An update of one is done, and who set what of it is not recorded anew; an apply, which
// cannot do without, is refused.
func Bound(u Upstream) Upstream { return bound{u} }

type bound struct{ Upstream }

// UpdateNoErrors implements Upstream.
func (b bound) UpdateNoErrors(live, next runtime.Object, manager string) runtime.Object {
	if within(live, next) {
		return b.Upstream.UpdateNoErrors(live, next, manager)
	}
	before, err := meta.Accessor(live)
	if err != nil {
		return next
	}
	if after, err := meta.Accessor(next); err == nil {
		after.SetManagedFields(before.GetManagedFields())
	}
	return next
}

// Apply implements Upstream.
func (b bound) Apply(live, applied runtime.Object, manager string, force bool) (runtime.Object, error) {
	if !within(live, applied) {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"the object cannot be applied: one of its lists or maps has more than %d members, or all lists together %d entries, or its managed fields "+
				"have more than %d entries or %d bytes; create, update or patch it instead", MaxSiblings, MaxEntries, MaxManagers, MaxFieldBytes))
	}
	return b.Upstream.Apply(live, applied, manager, force)
}

// within says whether the squares of the sizes of all lists and maps of the objects, and the entries of their lists, stay
// within the bounds.
func within(objects ...runtime.Object) bool {
	left := &budget{squares: MaxSiblings * MaxSiblings, entries: MaxEntries}
	for _, o := range objects {
		if o == nil {
			continue
		}
		if !few(o) || !spend(reflect.ValueOf(o), left) {
			return false
		}
	}
	return true
}

// few says whether an object's managed fields are such as real ones.
func few(o runtime.Object) bool {
	m, err := meta.Accessor(o)
	if err != nil {
		return true
	}
	bytes := 0
	for _, e := range m.GetManagedFields() {
		if e.FieldsV1 != nil {
			bytes += len(e.FieldsV1.GetRawBytes())
		}
	}
	return len(m.GetManagedFields()) <= MaxManagers && bytes <= MaxFieldBytes
}

var timeType = reflect.TypeFor[time.Time]()

// budget is what is left of the bounds.
type budget struct{ squares, entries int64 }

// spend takes the squares of the sizes of what is in v from left, and the entries of lists, and says whether it
// sufficed.
func spend(v reflect.Value, left *budget) bool {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return v.IsNil() || spend(v.Elem(), left)
	case reflect.Struct:
		if v.Type() == timeType {
			return true // it leads to the whole table of a time zone
		}
		for i := range v.NumField() {
			if !spend(v.Field(i), left) {
				return false
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return true
		}
		if left.entries -= int64(v.Len()); !pay(v.Len(), left) {
			return false
		}
		for i := range v.Len() {
			if !spend(v.Index(i), left) {
				return false
			}
		}
	case reflect.Map:
		if !pay(v.Len(), left) {
			return false
		}
		if simple(v.Type().Elem().Kind()) {
			return true
		}
		for i := v.MapRange(); i.Next(); {
			if !spend(i.Value(), left) {
				return false
			}
		}
	default: // numbers, texts and the like cost nothing
	}
	return true
}

func pay(n int, left *budget) bool {
	left.squares -= int64(n) * int64(n)
	return left.squares >= 0 && left.entries >= 0
}

func simple(k reflect.Kind) bool {
	return k == reflect.String || k == reflect.Bool || k >= reflect.Int && k <= reflect.Float64
}
