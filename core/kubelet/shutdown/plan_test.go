// SPDX-License-Identifier: Apache-2.0

package shutdown_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/kubelet/shutdown"
)

func pod(name string, priority int32, grace int64) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{Priority: ptr.To(priority), TerminationGracePeriodSeconds: ptr.To(grace)},
	}
}

func plan(t *testing.T, s shutdown.Settings, pods ...*corev1.Pod) string {
	t.Helper()
	periods, err := s.Read()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, g := range periods.Plan(pods) {
		line := fmt.Sprintf("%d for %v:", g.Priority, g.Wait)
		for _, v := range g.Pods {
			line += fmt.Sprintf(" %s %ds", v.Pod.Name, v.Grace)
		}
		out = append(out, line)
	}
	return strings.Join(out, "; ")
}

func TestWhoEndsWhen(t *testing.T) {
	none := pod("no-priority", 0, 30)
	none.Spec.Priority, none.Spec.TerminationGracePeriodSeconds = nil, nil
	pods := []*corev1.Pod{
		pod("critical", 2_000_000_000, 600), pod("node-critical", 2_000_001_000, 3), pod("high", 1_999_999_999, 30), none, pod("low", -5, 0),
	}
	for name, c := range map[string]struct {
		s    shutdown.Settings
		want string
	}{
		"nothing set": {shutdown.Settings{}, ""},
		"two times": {
			shutdown.Settings{Grace: 30 * time.Second, Critical: 10 * time.Second},
			"0 for 20s: high 20s no-priority 20s low 1s; 2000000000 for 10s: critical 10s node-critical 3s",
		},
		"none for critical ones: they are killed": {
			shutdown.Settings{Grace: 30 * time.Second},
			"0 for 30s: high 30s no-priority 30s low 1s; 2000000000 for 0s: critical 1s node-critical 1s",
		},
		"all for critical ones": {
			shutdown.Settings{Grace: 30 * time.Second, Critical: 30 * time.Second},
			"0 for 0s: high 1s no-priority 1s low 1s; 2000000000 for 30s: critical 30s node-critical 3s",
		},
		"by priority, in any order; a priority nobody has takes no time": {
			shutdown.Settings{ByPriority: []shutdown.Period{
				{2_000_000_000, 40 * time.Second}, {0, 10 * time.Second}, {1000, 20 * time.Second}, {1_999_999_999, 5 * time.Second}, {50, time.Hour},
			}},
			"0 for 10s: no-priority 10s low 1s; 1999999999 for 5s: high 5s; 2000000000 for 40s: critical 40s node-critical 3s",
		},
		"below all, above all": {
			shutdown.Settings{ByPriority: []shutdown.Period{{math.MaxInt32, time.Second}, {math.MinInt32, 2 * time.Second}}},
			"-2147483648 for 2s: critical 2s node-critical 2s high 2s no-priority 2s low 1s",
		},
	} {
		if got := plan(t, c.s, pods...); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", name, got, c.want)
		}
	}
}

func TestWrongSettings(t *testing.T) {
	for _, c := range []struct {
		s             shutdown.Settings
		setting, says string
	}{
		{shutdown.Settings{Grace: -time.Second}, "shutdownGracePeriod", "found -1s"},
		{shutdown.Settings{Grace: 1500 * time.Millisecond}, "shutdownGracePeriod", "whole seconds"},
		{shutdown.Settings{Critical: time.Second}, "shutdownGracePeriodCriticalPods", "at most shutdownGracePeriod"},
		{
			shutdown.Settings{Grace: time.Second, ByPriority: []shutdown.Period{{0, time.Second}}},
			"shutdownGracePeriodByPodPriority", "found both",
		},
		{shutdown.Settings{ByPriority: []shutdown.Period{{0, -time.Second}}}, "shutdownGracePeriodByPodPriority[0]", "found -1s"},
		{
			shutdown.Settings{ByPriority: []shutdown.Period{{7, time.Second}, {7, time.Second}}},
			"shutdownGracePeriodByPodPriority[1]", "priority 7 is given twice",
		},
	} {
		_, err := c.s.Read()
		var wrong *shutdown.SettingError
		if !errors.As(err, &wrong) || wrong.Setting != c.setting || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %s: %s", c.s, err, c.setting, c.says)
		}
	}
}
