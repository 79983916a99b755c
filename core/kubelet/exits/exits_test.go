// SPDX-License-Identifier: Apache-2.0

package exits

import "testing"

func TestWhoWaitsHearsOfTheEndOfThatContainerAlone(t *testing.T) {
	var e Exits
	over := func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return true
		default:
			return false
		}
	}
	if !over(e.Of("1")) {
		t.Error("a container that never ran is waited for")
	}
	e.Set(map[string]string{"app": "1", "proxy": "2"})
	if e.Running("app") != "1" || e.Running("other") != "" {
		t.Errorf("app is %q, other is %q", e.Running("app"), e.Running("other"))
	}
	app, again, proxy := e.Of("1"), e.Of("1"), e.Of("2")
	if over(app) || over(proxy) {
		t.Fatal("a wait for a container that runs has ended")
	}
	e.Set(map[string]string{"app": "3", "proxy": "2"}) // begun anew
	if !over(app) || !over(again) || over(proxy) {
		t.Errorf("of the old app's waits %v and %v have ended, and of the proxy's %v", over(app), over(again), over(proxy))
	}
	if e.Set(nil); !over(proxy) {
		t.Error("a wait goes on though nothing runs")
	}
}
