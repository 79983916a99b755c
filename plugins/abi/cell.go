// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"math"
	"reflect"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/wasmplane/wasmplane/plugins/abi/jsonvalue"
)

// Interner numbers strings from 1 on: equal strings have equal numbers.
type Interner struct{ numbers map[string]int64 }

// maxStrings bounds an Interner; its owner starts over when it is Full.
const maxStrings = 1 << 20

// Number is the number of s.
func (i *Interner) Number(s string) int64 {
	if i.numbers == nil {
		i.numbers = map[string]int64{}
	}
	n, ok := i.numbers[s]
	if !ok {
		n = int64(len(i.numbers) + 1)
		i.numbers[s] = n
	}
	return n
}

// Full says whether there are so many strings that it is better to start over.
func (i *Interner) Full() bool { return len(i.numbers) > maxStrings }

// Cell is the value of one column of doc, as eight bytes hold it: 0 where it is
// absent or of another type.
func (c *Column) Cell(doc any, p Path, strings *Interner) int64 {
	v := reflect.ValueOf(doc)
	for _, s := range p.steps {
		var ok bool
		if v, ok = jsonvalue.Get(v, s.name); !ok {
			return 0
		}
	}
	v, _ = jsonvalue.Open(v)
	if !v.IsValid() {
		return 0
	}
	switch c.Type {
	case ColumnString:
		if v.Kind() == reflect.String {
			return strings.Number(v.String())
		}
		return 0
	case ColumnBool:
		return bit(c.holds(v))
	case ColumnMilli:
		return number(v, true)
	default:
		return number(v, false)
	}
}

func (c *Column) holds(v reflect.Value) bool {
	if c.Equals != nil {
		return v.Kind() == reflect.String && v.String() == *c.Equals
	}
	return v.Kind() == reflect.Bool && v.Bool()
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// number reads integers, floats, quantities and strings that hold one.
func number(v reflect.Value, milli bool) int64 {
	scale := int64(1)
	if milli {
		scale = 1000
	}
	switch {
	case v.CanInt():
		return v.Int() * scale
	case v.CanUint():
		return int64(v.Uint()) * scale
	case v.CanFloat():
		return int64(math.Ceil(v.Float() * float64(scale)))
	case v.Kind() == reflect.Bool:
		return bit(v.Bool())
	}
	var q resource.Quantity
	switch {
	case v.Type() == jsonvalue.QuantityType:
		q = v.Interface().(resource.Quantity)
	case v.Kind() == reflect.String:
		var err error
		if q, err = resource.ParseQuantity(v.String()); err != nil {
			return 0
		}
	default:
		return 0
	}
	if milli {
		return q.MilliValue()
	}
	return q.Value()
}
