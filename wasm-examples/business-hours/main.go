// SPDX-License-Identifier: Apache-2.0

// The business-hours plugin freezes namespaces outside of working hours: who
// changes something there on a Friday night has to say so. It needs the clock.
package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	wasmplane "github.com/wasmplane/wasmplane/sdk/go"
)

var (
	zone       = time.UTC
	days       = map[string]bool{}
	from, to   int // minutes of the day
	annotation = "wasmplane.dev/emergency"
)

// minutes reads "09:30".
func minutes(text string) (int, error) {
	hour, minute, ok := strings.Cut(text, ":")
	h, err1 := strconv.Atoi(hour)
	m, err2 := strconv.Atoi(minute)
	if !ok || err1 != nil || err2 != nil || h < 0 || h > 24 || m < 0 || m > 59 {
		return 0, fmt.Errorf("%q is no time of day such as 09:30", text)
	}
	return 60*h + m, nil
}

func settings(s wasmplane.Value) error {
	var err1, err2 error
	from, err1 = minutes(s.Get("from").String())
	to, err2 = minutes(s.Get("to").String())
	for _, d := range s.Get("days").Strings() {
		days[d] = true
	}
	zone = time.FixedZone("settings", int(s.Get("utcOffsetMinutes").Int())*60)
	if a := s.Get("emergencyAnnotation").String(); a != "" {
		annotation = a
	}
	return errors.Join(err1, err2)
}

func open(now time.Time) bool {
	now = now.In(zone)
	at := 60*now.Hour() + now.Minute()
	return days[now.Weekday().String()] && at >= from && at < to
}

var _ = wasmplane.Register(wasmplane.Plugin{
	Name: "business-hours", Version: "1.0.0", Settings: settings,
	Validate: &wasmplane.Admission{
		Match: []wasmplane.Rule{wasmplane.Rule{Resources: []string{"deployments", "statefulsets", "daemonsets"}}.In("apps").On("CREATE",
			"UPDATE", "DELETE")},
		Fields: []string{"object.metadata.annotations", "userInfo.username"},
		Decide: func(in wasmplane.Input, out *wasmplane.Decision) {
			if open(time.Now()) {
				return
			}
			if why := in.Get("object.metadata.annotations").Get(annotation).String(); why != "" {
				out.Warn("changed outside of business hours: " + why)
				out.Audit("emergency", in.Get("userInfo.username").String()+": "+why)
				return
			}
			out.Deny("it is outside of business hours; if it cannot wait, say why in the annotation " + annotation)
		},
	},
})

func main() {}
