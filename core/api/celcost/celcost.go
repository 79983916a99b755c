// SPDX-License-Identifier: Apache-2.0

// Package celcost bounds what it costs to compile the CEL expressions of an object, before
// any of them is compiled.
//
// Upstream bounds what expressions cost when they are evaluated, which it estimates from
// compiled ones. Compiling itself is unbounded, and looks at no deadline: each operator of
// any type (==, in, ?:, lists, indexes) becomes a variable of the type checker, and each
// call has all variables so far copied, so that the time grows with the square of an
// expression's length. One of 90 KB took 40 seconds of a processor.
//
// What is counted here is read off the text, without parsing it.
package celcost

import (
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of the expressions of one object together. Each is about half a second of a processor.
const (
	// MaxExpressions is how many there may be.
	MaxExpressions = 2000
	// MaxBytes is how long they may be together.
	MaxBytes = 512 << 10
	// MaxSquare is the sum over the expressions of operators times operators of any type:
	// 1,000 comparisons that are joined with && are 2 million.
	MaxSquare = 5_000_000
)

// Check holds the expressions of an object against the limits, which an update is not that
// leaves them as they are in old; nil = there is none. It is asked before upstream's validation.
func Check(o, old runtime.Object) field.ErrorList {
	if crd, ok := o.(*apiextensions.CustomResourceDefinition); ok {
		if same(o, old) {
			return nil
		}
		return checkDefinition(&crd.Spec)
	}
	all := expressions(o)
	if old != nil && slices.Equal(all, expressions(old)) {
		return nil
	}
	if why := over(all); why != "" {
		return field.ErrorList{field.Forbidden(field.NewPath("spec"), why)}
	}
	return nil
}

// over says which limit the expressions exceed; "" if none.
func over(expressions []string) string {
	number, bytes, squares := 0, 0, 0
	for _, e := range expressions {
		if e != "" {
			number++
		}
		bytes += len(e)
		squares += square(e)
	}
	switch {
	case number > MaxExpressions:
		return fmt.Sprintf("the object has %d CEL expressions, and at most %d are compiled for one object", number, MaxExpressions)
	case bytes > MaxBytes:
		return fmt.Sprintf("the CEL expressions of the object have %d bytes, and at most %d are compiled for one object", bytes, MaxBytes)
	case squares > MaxSquare:
		return tooLong(squares)
	}
	return ""
}

func tooLong(squares int) string {
	return fmt.Sprintf("the CEL expressions of the object are too long to be compiled: the operators times the comparisons, lists, indexes and "+
		"conditions of each are %d together, and the limit is %d; divide the longest, or look values up in one list", squares, MaxSquare)
}

// square is how often the type checker copies a variable while it checks an expression, at most.
func square(e string) int {
	calls, variables := 0, 0
	for i := 0; i < len(e); i++ {
		switch c := e[i]; c {
		case '"', '\'':
			i = closing(e, i)
		case '=', '!', 'n': // ==, !=, in
			switch {
			case c == 'n':
				if i == 0 || e[i-1] != 'i' || word(e, i-2) || word(e, i+1) {
					continue
				}
			case i+1 < len(e) && e[i+1] == '=':
				i++
			case c == '!':
				calls++
				continue
			}
			calls, variables = calls+1, variables+1
		case '[', '{', '?':
			calls, variables = calls+1, variables+1
		case '(':
			switch name := nameBefore(e, i); name {
			case "all", "exists", "exists_one", "existsOne", "filter", "map", "transformList", "transformMap", "transformMapEntry":
				calls, variables = calls+3, variables+2 // a loop
			case "":
			default:
				calls++
			}
		case '&', '|':
			i++
			calls++
		case '<', '>', '+', '-', '*', '/', '%':
			calls++
		}
	}
	return calls * variables
}

func word(e string, i int) bool {
	if i < 0 || i >= len(e) {
		return false
	}
	c := e[i]
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// nameBefore is the name that stands immediately before i.
func nameBefore(e string, i int) string {
	from := i
	for from > 0 && word(e, from-1) {
		from--
	}
	return e[from:i]
}

// closing is where the quoted text ends that begins at i. Quotes in threes and raw texts
// are several texts, or end early: then more is counted than there is.
func closing(e string, i int) int {
	quote := e[i]
	for i++; i < len(e) && e[i] != quote; i++ {
		if e[i] == '\\' {
			i++
		}
	}
	return i
}
