// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"encoding/json"
	"reflect"
	"testing"
)

// FuzzDecode: whatever the file says, its claims can be taken back, and are written as they were read.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"Format":1,"Claims":[{"Namespace":"a","Name":"b","UID":"u","Pods":["p"],"Drivers":{"d":[{"Pool":"n","Device":"0","CDI":["v/c=0"]}]},"Prepared":true}]}`))
	f.Add([]byte(`{"Format":1,"Claims":[null]}`))
	f.Add([]byte(`{"Format":1,"Claims":[{"Drivers":null}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		claims, err := decode("file", data)
		if err != nil {
			return
		}
		n := &Node{claims: map[name]*prepared{}}
		for _, c := range claims {
			n.claims[name{c.Namespace, c.Name}] = c
		}
		for _, c := range claims {
			for _, driver := range n.driversOf(c) {
				for _, d := range c.Drivers[driver] {
					d.meant([]string{"r", ""})
				}
			}
		}
		written, err := json.Marshal(saved{format, claims})
		if err != nil {
			t.Fatal(err)
		}
		if again, err := decode("file", written); err != nil || !reflect.DeepEqual(again, claims) {
			t.Errorf("%s was read, and %s written: %v", data, written, err)
		}
	})
}
