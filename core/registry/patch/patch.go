// SPDX-License-Identifier: Apache-2.0

// Package patch applies JSON patches and JSON merge patches to the text of an object.
// What would cost more than a request may is refused before the cost arises; the
// refusals are upstream's, as errors of the API.
package patch

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/wasmplane/wasmplane/core/jsonscan"
)

// maxOperations is upstream's bound on a JSON patch; copies within one can
// grow the object exponentially, which maxPatched bounds.
const (
	maxOperations = 10_000
	maxPatched    = 16 << 20
	maxMoved      = 50_000_000
	maxScanned    = 100_000_000
	// maxValues is how many values a patch has, as many as a stored object may have: each is a node that is taken apart. Three
	// MiB of numbers took two seconds of a processor and a gigabyte.
	maxValues = 750_000
)

// Patch is a change that a client asks for.
type Patch struct {
	Type types.PatchType
	Body []byte
	// Fields has unknown and duplicate fields reported.
	Fields bool
}

// ErrType is returned for a patch that is neither a JSON patch nor a merge patch.
var ErrType = errors.New("a patch of another type")

// Check refuses a patch that is no JSON.
func (p Patch) Check() error {
	if !json.Valid(p.Body) {
		return apierrors.NewBadRequest("invalid JSON patch")
	}
	return nil
}

// Apply applies the patch, which Check has passed, to the JSON of an object. strict lists
// unknown and duplicate fields of the patch.
func (p Patch) Apply(before []byte) (after []byte, strict []error, err error) {
	if scanned(before)+scanned(p.Body) > maxScanned {
		return nil, nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"the patch or the object is large and nested deeply: its bytes times the levels that they are in are more than %d; replace the object", maxScanned))
	}
	if jsonscan.Commas(p.Body) > maxValues {
		return nil, nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the patch has more than %d values; replace the object", maxValues))
	}
	if p.Type == types.JSONPatchType {
		return p.jsonPatch(before)
	}
	if p.Type == types.MergePatchType {
		return p.mergePatch(before)
	}
	return nil, nil, ErrType
}

// jsonPatchOp has the name of upstream's: what cannot be decoded is refused by it.
type jsonPatchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

func (p Patch) jsonPatch(before []byte) (after []byte, strict []error, err error) {
	if p.Fields {
		var ops []jsonPatchOp
		if strict, err = kjson.UnmarshalStrict(p.Body, &ops); err != nil {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
		for i, e := range strict {
			strict[i] = fmt.Errorf("json patch %w", e)
		}
	}
	operations, err := jsonpatch.DecodePatch(p.Body)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if len(operations) > maxOperations {
		return nil, nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d",
			maxOperations, len(operations)))
	}
	if err := boundCopies(before, p.Body); err != nil {
		return nil, nil, err
	}
	if err := boundMoves(before, p.Body, len(operations)); err != nil {
		return nil, nil, err
	}
	after, err = operations.Apply(before)
	if err != nil {
		return nil, nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	return after, strict, nil
}

// boundCopies refuses a JSON patch whose copies could blow the object up: each
// copy at most doubles it.
func boundCopies(before, patch []byte) error {
	var ops []jsonPatchOp
	if err := kjson.UnmarshalCaseSensitivePreserveInts(patch, &ops); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	size := len(before) + len(patch)
	for _, op := range ops {
		if op.Op != "copy" {
			continue
		}
		if size *= 2; size > maxPatched {
			return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the copy operations of the JSON patch could make the object larger than %d bytes", maxPatched))
		}
	}
	return nil
}

// scanned is what a patch costs that goes to the bottom of an object: each level is decoded when it is entered, with all
// that is in it, so that a byte is read as often as it has levels around it.
func scanned(data []byte) (bytes int) {
	depth, quoted := 0, false
	for i := 0; i < len(data); i++ {
		bytes += depth
		switch c := data[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
	}
	return bytes
}

// boundMoves refuses a JSON patch that could move too many entries: whoever adds or
// removes one of a list moves all behind it. The list is the object's or comes with the
// patch; what operations add one by one is bounded by their number.
func boundMoves(before, patch []byte, operations int) error {
	if operations*max(len(before), len(patch))/2 <= maxMoved { // an entry has two bytes at least
		return nil
	}
	if longest := max(jsonscan.LongestList(before), jsonscan.LongestList(patch)); operations*longest > maxMoved {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"the JSON patch has %d operations, and the longest list %d entries: the product is bounded by %d; replace the list", operations, longest, maxMoved))
	}
	return nil
}

func (p Patch) mergePatch(before []byte) (after []byte, strict []error, err error) {
	if p.Fields {
		v := map[string]any{}
		if strict, err = kjson.UnmarshalStrict(p.Body, &v); err != nil {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
	}
	after, err = jsonpatch.MergePatch(before, p.Body)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	return after, strict, nil
}
