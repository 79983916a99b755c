// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
)

var update = flag.Bool("update", false, "rewrite testdata/table.txt")

// The whole table, as text: a bump of the Kubernetes modules that changes what
// is behind it fails here, with a diff that says what.
func TestTableIsAsRecorded(t *testing.T) {
	c := newContract(t)
	var b strings.Builder
	for _, g := range c.Groups() {
		fmt.Fprintf(&b, "group %q: %s\n", g.Name, strings.Join(g.Versions, " "))
	}
	for _, r := range c.Resources() {
		b.WriteString("\n" + describeRow(t, c, r))
	}
	const file = "testdata/table.txt"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(b.String(), "\n")); diff != "" {
		t.Errorf("the table changed; look at each line, then go test ./core/api -run Recorded -update:\n%s", diff)
	}
}

func describeRow(t *testing.T, c *Contract, r *Resource) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, "  "+format+"\n", args...) }
	fmt.Fprintf(&b, "%s (%s, %s)\n", r.GroupResource, r.Kind, r.Singular)
	line("versions %s, namespaced %t", strings.Join(r.Versions, " "), r.Namespaced)
	line("verbs %s", strings.Join(r.Verbs, " "))
	if len(r.ShortNames)+len(r.Categories) > 0 {
		line("short names %v, categories %v", r.ShortNames, r.Categories)
	}
	if !r.Virtual {
		line("stored at %s as %s in %s", r.StoragePrefix, r.StorageVersion, r.storageMedia)
		line("fields %s", strings.Join(r.Selectable, " "))
		line("strategy %s", describeStrategy(r.Strategy, r.DeleteStrategy))
		line("delete answers the object: %t, expires: %t", r.ReturnDeleted, r.TTL != nil)
		table, err := c.Table(t.Context(), r, TableRequest{Version: r.Versions[0]}, nil)
		if err != nil {
			t.Fatal(err)
		}
		line("columns %s", columnNames(table))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Subresources)) {
		s := r.Subresources[name]
		line("/%s %s: %s%s %s", name, s.Kind, strings.Join(s.Verbs, " "), connects(s), describeStrategy(s.Strategy, nil))
	}
	return b.String()
}

func connects(s *Subresource) string {
	if s.ConnectMethods == nil {
		return ""
	}
	return " by " + strings.Join(s.ConnectMethods, " ")
}

func describeStrategy(s Strategy, d rest.RESTDeleteStrategy) string {
	if s == nil {
		return ""
	}
	out := reflect.TypeOf(s).String()
	if _, ok := s.(rest.ResetFieldsStrategy); ok {
		out += " resets fields"
	}
	if _, ok := s.(rest.ResetFieldsFilterStrategy); ok {
		out += " filters fields"
	}
	if _, ok := d.(rest.RESTGracefulDeleteStrategy); ok {
		out += " graceful"
	}
	if gc, ok := d.(rest.GarbageCollectionDeleteStrategy); ok {
		out += " gc:" + string(gc.DefaultGarbageCollectionPolicy(StrategyContext(context.Background(), StrategyInfo{})))
	}
	if s.AllowUnconditionalUpdate(StrategyContext(context.Background(), StrategyInfo{})) {
		out += " unconditional updates"
	}
	if s.AllowCreateOnUpdate(StrategyContext(context.Background(), StrategyInfo{})) {
		out += " creates on update"
	}
	return out
}

func columnNames(t *metav1.Table) string {
	var names []string
	for _, c := range t.ColumnDefinitions {
		n := c.Name
		if c.Priority > 0 {
			n = "(" + n + ")"
		}
		names = append(names, n)
	}
	return strings.Join(names, ", ")
}
