// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// Canned is a module with a hook at every point that answers with its settings,
// whatever it is asked. Its fields are those given; none = the whole document.
func Canned(tb testing.TB, fields ...string) []byte {
	tb.Helper()
	list := `"` + strings.Join(fields, `","`) + `"`
	if len(fields) == 0 {
		list = ""
	}
	var hooks []string
	for i, p := range []string{
		"admission.mutate", "admission.validate", "authorization", "scheduling.filter", "scheduling.score",
		"nodeadmission",
	} {
		hooks = append(hooks, fmt.Sprintf(`{"op":%d,"point":%q,"fields":[%s],"match":[{"resources":["*/*","*"]}]}`, i+1, p, list))
	}
	for i, p := range []string{
		"preEnqueue", "queueSort", "preFilter", "postFilter", "preScore", "normalize", "reserve", "unreserve",
		"permit", "preBind", "bind", "postBind",
	} {
		hooks = append(hooks, fmt.Sprintf(`{"op":%d,"point":"scheduling.%s","fields":[%s]}`, 20+i, p, list))
	}
	hooks = append(hooks, `{"op":8,"point":"reconcile","primary":{"version":"v1","resource":"configmaps","kind":"ConfigMap"},"owned":[]}`)
	manifest := `{"abi":1,"name":"canned","version":"1","settings":true,"hooks":[` + strings.Join(hooks, ",") + `]}`
	wasm, err := wat.Assemble(fmt.Sprintf(`(module
		(memory (export "memory") 8)
		(data (i32.const 0) "%s")
		(global $length (mut i32) (i32.const 0))
		(func (export "describe") (result i64) (i64.const %d))
		(func (export "alloc") (param i32) (result i32) (i32.const 131072))
		(func (export "call") (param $op i32) (param $at i32) (param $n i32) (result i64)
			(if (i32.eqz (local.get $op)) (then
				(memory.copy (i32.const 65536) (local.get $at) (local.get $n))
				(global.set $length (local.get $n))
				(return (i64.const 0))))
			(i64.or (i64.shl (i64.const 65536) (i64.const 32)) (i64.extend_i32_u (global.get $length)))))`,
		strings.ReplaceAll(manifest, `"`, `\"`), len(manifest)))
	if err != nil {
		tb.Fatal(err)
	}
	return wasm
}
