// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
)

// A Table of a list has, when it is printed and when its rows are kept, the rows
// that each object has by itself, whatever of the objects is included.
func TestRowsOfAListAreThoseOfItsObjects(t *testing.T) {
	h := apiservertest.Start(t, apiservertest.Options{}).LocalHandler()
	do(t, h, "POST", "/api/v1/namespaces", "application/json", `{"metadata":{"name":"rows"}}`, 201)
	for i := range 3 {
		do(t, h, "POST", "/api/v1/namespaces/rows/pods", "application/json", fmt.Sprintf(`{"metadata":{"name":"p%d","annotations":{"a":"<b>"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`, i), 201)
		do(t, h, "POST", "/api/v1/namespaces/rows/configmaps", "application/json",
			fmt.Sprintf(`{"metadata":{"name":"c%d"},"data":{"metadata":"{"}}`, i), 201)
		do(t, h, "POST", "/apis/batch/v1/namespaces/rows/cronjobs", "application/json", fmt.Sprintf(`{"metadata":{"name":"j%d"},"spec":{"schedule":"* * * * *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}`, i), 201)
	}
	do(t, h, "PATCH", "/api/v1/namespaces/rows/pods/p1/status", "application/strategic-merge-patch+json", fmt.Sprintf(
		`{"status":{"containerStatuses":[{"name":"c","restartCount":2,"lastState":{"terminated":{"exitCode":1,"finishedAt":%q}},"state":{"running":{}}}]}}`,
		time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)), 200)
	for _, path := range []string{
		"/api/v1/namespaces/rows/pods", "/api/v1/namespaces/rows/configmaps",
		"/apis/batch/v1/namespaces/rows/cronjobs",
	} {
		for _, include := range []string{"", "?includeObject=Object", "?includeObject=None"} {
			for range 3 { // the first time rows are made, then they are kept
				sameRows(t, h, path, include)
			}
		}
	}
	do(t, h, "PATCH", "/api/v1/namespaces/rows/configmaps/c1", "application/merge-patch+json", `{"data":{"more":"x"}}`, 200)
	sameRows(t, h, "/api/v1/namespaces/rows/configmaps", "")
}

// A watcher is sent the columns with the first Table. In those that follow they are null, as upstream has them: an
// empty list would say that there are no columns.
func TestAWatchSendsItsColumnsOnce(t *testing.T) {
	h := apiservertest.Start(t, apiservertest.Options{}).LocalHandler()
	for _, name := range []string{"a", "b"} {
		do(t, h, "POST", "/api/v1/namespaces/default/secrets", "application/json", fmt.Sprintf(`{"metadata":{"name":%q}}`, name), 201)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(genericrequest.WithUser(r.Context(),
			&user.DefaultInfo{Name: "rows", Groups: []string{user.SystemPrivilegedGroup}})))
	}))
	defer s.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		s.URL+"/api/v1/namespaces/default/secrets?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	res, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	events := json.NewDecoder(res.Body)
	for i, kind := range []string{"ADDED", "ADDED", "BOOKMARK"} {
		var event struct {
			Type   string
			Object struct{ ColumnDefinitions json.RawMessage }
		}
		if err := events.Decode(&event); err != nil || event.Type != kind {
			t.Fatalf("event %d is %+v (%v), want one of type %s", i, event, err, kind)
		}
		if got := string(event.Object.ColumnDefinitions); (got == "null") != (i > 0) || got == "[]" {
			t.Errorf("event %d (%s) has the columns %s", i, kind, got)
		}
	}
}

// A long Table is put together of many pieces: each row has its own object's metadata.
func TestLongTables(t *testing.T) {
	h := apiservertest.Start(t, apiservertest.Options{}).LocalHandler()
	do(t, h, "POST", "/api/v1/namespaces", "application/json", `{"metadata":{"name":"long"}}`, 201)
	const rows = 150
	for i := range rows {
		do(t, h, "POST", "/api/v1/namespaces/long/configmaps", "application/json",
			fmt.Sprintf(`{"metadata":{"name":"c%03d","annotations":{"note":%q}},"data":{"a":"b"}}`, i, strings.Repeat("n", i*i%3000)), 201)
	}
	for _, include := range []string{"", "", "?includeObject=Object", "?includeObject=None"} {
		table := tableFrom(t, h, "/api/v1/namespaces/long/configmaps"+include)
		if len(table.Rows) != rows {
			t.Fatalf("%d rows, want %d", len(table.Rows), rows)
		}
		for i, row := range table.Rows {
			name := fmt.Sprintf("c%03d", i)
			if row.Cells[0] != name {
				t.Fatalf("row %d is of %v, want %s", i, row.Cells[0], name)
			}
			var object metav1.PartialObjectMetadata
			if include == "?includeObject=None" {
				continue
			}
			if err := json.Unmarshal(row.Object.Raw, &object); err != nil || object.Name != name || len(object.Annotations["note"]) != i*i%3000 {
				t.Fatalf("row %d has the object %s (%v)", i, row.Object.Raw, err)
			}
		}
	}
}

func sameRows(t *testing.T, h http.Handler, path, include string) {
	t.Helper()
	var diff string
	for range 20 { // an age may change between the two
		list := tableFrom(t, h, path+include)
		if len(list.Rows) != 3 || list.ResourceVersion == "" || len(list.ColumnDefinitions) == 0 {
			t.Fatalf("%d rows at %q with %d columns", len(list.Rows), list.ResourceVersion, len(list.ColumnDefinitions))
		}
		diff = ""
		for _, row := range list.Rows {
			one := tableFrom(t, h, fmt.Sprintf("%s/%s%s", path, row.Cells[0], include))
			diff += cmp.Diff(one.ColumnDefinitions, list.ColumnDefinitions)
			diff += cmp.Diff(text(t, one.Rows[0]), text(t, row))
		}
		if diff == "" {
			return
		}
	}
	t.Errorf("%s%s (-object +list):\n%s", path, include, diff)
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func tableFrom(t *testing.T, h http.Handler, path string) *metav1.Table {
	t.Helper()
	req := httptest.NewRequestWithContext(genericrequest.WithUser(t.Context(),
		&user.DefaultInfo{Name: "rows", Groups: []string{user.SystemPrivilegedGroup}}), http.MethodGet, path, nil)
	req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	table := &metav1.Table{}
	if err := json.Unmarshal(w.Body.Bytes(), table); err != nil || w.Code != http.StatusOK || table.Kind != "Table" {
		t.Fatalf("%s answered %d: %s %v", path, w.Code, w.Body, err)
	}
	return table
}
