// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
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

// FuzzReports: whatever a driver says of its devices is remembered within bounds, and can be shown in a status.
func FuzzReports(f *testing.F) {
	f.Add("n1", "0", "fine", int64(5), 3)
	f.Add(strings.Repeat("p", 1<<20), "0", "", int64(-1), 1)
	f.Add("n1", strings.Repeat("d", 1<<20), "", int64(1), 1)
	f.Add("n1", "d", strings.Repeat("\u00e9", 1000), int64(1)<<62, 20_000)
	f.Fuzz(func(t *testing.T, pool, name, message string, lasts int64, number int) {
		if !utf8.ValidString(message) { // the stream takes none
			return
		}
		h, now := newWellbeing(), time.Unix(0, 0)
		for i := range min(max(number, 1), 2*mostReported) {
			h.take("d", []*healthv1.DeviceHealth{{
				Device: &healthv1.DeviceIdentifier{PoolName: pool, DeviceName: name + fmt.Sprint(i)}, Message: message,
				Health: healthv1.HealthStatus_HEALTHY, HealthCheckTimeoutSeconds: lasts,
			}}, now)
		}
		if len(h.by["d"]) > mostReported {
			t.Errorf("%d devices are remembered", len(h.by["d"]))
		}
		for at, r := range h.by["d"] {
			if len(at.pool) > longestPool || len(at.device) > longestDevice || len(r.message) > mostMessage || !utf8.ValidString(r.message) ||
				!r.until.After(now) || r.until.Sub(now) > healthLongest {
				t.Fatalf("%q: %+v", at, r)
			}
		}
	})
}
