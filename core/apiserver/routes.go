// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gorilla/mux"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/version"

	"github.com/wasmplane/wasmplane/core/apiserver/answer"
	"github.com/wasmplane/wasmplane/core/apiserver/health"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/profiling"
	"github.com/wasmplane/wasmplane/core/zpages"
)

// routes is the whole map of the server. Resources have one route for each depth
// of the path only: which of them is meant, request info has already found out,
// for authorization, and nothing here finds it out a second time.
func (s *Server) routes() *mux.Router {
	r := mux.NewRouter().SkipClean(true) // a cleaned path would be another one than was authorized
	get := func(path string, h http.HandlerFunc) {
		beginning(r, path).Path(path).Methods(http.MethodGet, http.MethodHead).HandlerFunc(h)
	}
	get("/", s.index)
	get("/version", s.version)
	get("/version/", s.version)
	probes := health.Probes{Checks: s.cfg.Checks, Stopping: s.isStopping, Observe: s.health.Checked, Log: s.cfg.Logger}
	for _, probe := range []string{"healthz", "livez", "readyz"} {
		h := probes.Handler(probe)
		get("/"+probe, h)
		get("/"+probe+"/", h)
		get("/"+probe+"/{check:.+}", h)
	}
	if s.cfg.Gatherer != nil {
		get("/metrics", promhttp.HandlerFor(prometheus.Gatherers{s.cfg.Gatherer, s.health}, promhttp.HandlerOpts{}).ServeHTTP)
		get(zpages.SLIPath, s.health.Handler().ServeHTTP)
		r.Path(zpages.SLIPath).Methods(http.MethodDelete).Handler(s.health.Handler())
	}
	get(zpages.FlagsPath, zpages.FlagsPage(zpagesName, s.cfg.Flags).ServeHTTP)
	get(zpages.StatusPath, func(w http.ResponseWriter, req *http.Request) {
		zpages.Status(zpagesName, s.paths()).ServeHTTP(w, req) // of what is offered now
	})
	// Not in the index, as upstream; authorized as every path.
	get("/debug/pprof", http.RedirectHandler(profiling.Prefix, http.StatusFound).ServeHTTP)
	get(profiling.Prefix, profiling.Handler().ServeHTTP)
	get(profiling.Prefix+"{profile}", profiling.Handler().ServeHTTP)
	if s.cfg.OpenIDConfiguration != nil {
		get("/.well-known/openid-configuration", s.cfg.OpenIDConfiguration.ServeHTTP)
	}
	if s.cfg.JWKS != nil {
		get("/openid/v1/jwks", s.cfg.JWKS.ServeHTTP)
	}
	get("/openapi/v2", s.catalogue.OpenAPIV2)
	get("/openapi/v3", s.catalogue.OpenAPIV3Index)
	get("/openapi/v3/{path:.+}", s.catalogue.OpenAPIV3)

	// Before the API's own routes: a mount may look like a group of it.
	for _, m := range s.cfg.Mounts {
		if strings.HasSuffix(m.Prefix, "/") {
			beginning(r, m.Prefix).PathPrefix(m.Prefix).Handler(m.Handler)
		} else {
			beginning(r, m.Prefix).Path(m.Prefix).Handler(m.Handler)
		}
	}
	if s.cfg.Aggregator != nil {
		r.MatcherFunc(s.catalogue.Elsewhere).HandlerFunc(s.catalogue.ServeRemote)
	}
	for _, path := range []string{"/api/{version}/", "/apis/{group}/{version}/"} { // before what is longer
		get(path, s.catalogue.Resources)
	}
	for _, path := range []string{"/api/{version}/", "/apis/{group}/{version}/"} {
		beginning(r, path).PathPrefix(path).HandlerFunc(s.resource)
	}

	get("/api", s.catalogue.Core)
	get("/api/", s.catalogue.Core)
	get("/apis", s.catalogue.Groups)
	get("/apis/", s.catalogue.Groups)
	get("/apis/{group}", s.catalogue.Group)
	get("/apis/{group}/", s.catalogue.Group)
	for _, path := range []string{"/api/{version}", "/apis/{group}/{version}"} {
		get(path, s.catalogue.Resources)
	}
	// Mounts may lie below /apis: they come before what is there for resources.
	r.NotFoundHandler = http.HandlerFunc(s.answers.NotFound)
	r.MethodNotAllowedHandler = http.HandlerFunc(s.answers.MethodNotAllowed)
	return r
}

// beginning is a route of paths that begin as path does before its first variable. Every path is a regular expression to
// mux, which tries one route after the other: with this, all but the one or two that may be meant cost a comparison.
func beginning(r *mux.Router, path string) *mux.Route {
	fixed, _, _ := strings.Cut(path, "{")
	return r.MatcherFunc(func(req *http.Request, _ *mux.RouteMatch) bool { return strings.HasPrefix(req.URL.Path, fixed) })
}

// zpagesName is what upstream's API server calls itself on its pages.
const zpagesName = "apiserver"

// paths are what there is, sorted.
func (s *Server) paths() []string {
	paths := []string{
		"/api", "/api/v1", "/apis", "/healthz", "/livez", "/metrics", "/metrics/slis", "/openapi/v2", "/openapi/v3", "/readyz", "/version",
		"/openid/v1/jwks", "/.well-known/openid-configuration", zpages.FlagsPath, zpages.StatusPath,
	}
	paths = append(paths, s.catalogue.Paths()...)
	for _, m := range s.cfg.Mounts {
		paths = append(paths, m.Prefix)
	}
	slices.Sort(paths)
	return paths
}

// index lists what there is.
func (s *Server) index(w http.ResponseWriter, req *http.Request) {
	s.answers.JSON(w, req, answer.Format{MediaType: object.JSON, Pretty: true}, http.StatusOK, metav1.RootPaths{Paths: s.paths()})
}

func (s *Server) version(w http.ResponseWriter, req *http.Request) {
	s.answers.JSON(w, req, answer.Format{MediaType: object.JSON, Pretty: true}, http.StatusOK, effective(version.Get()))
}

// effective says of a version also what it behaves as, which is itself, and which servers of
// the same cluster it goes along with, back to the minor version before, as upstream says it.
func effective(v apimachineryversion.Info) apimachineryversion.Info {
	v.EmulationMajor, v.EmulationMinor = v.Major, v.Minor
	if minor, err := strconv.Atoi(v.Minor); err == nil && minor > 0 {
		v.MinCompatibilityMajor, v.MinCompatibilityMinor = v.Major, strconv.Itoa(minor-1)
	}
	return v
}
