// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"regexp"
	"strings"
)

// decision is a difference that is meant. Its patterns say where: those that are
// empty match everything.
type decision struct {
	why                                string
	story, request, at, ours, upstream string
	// sometimes: which of the two is faster is chance, so that it need not differ.
	sometimes bool
}

// decisions are all differences that are not our bugs.
var decisions = []decision{
	// What the two servers are.
	{why: "the server writes under its own name", ours: `^wasmplane$`, upstream: `^kube-apiserver$`, at: `managedFields\[\d+\]\.manager$`},
	{why: "the binary is another one", request: `/version`, at: `^body\.(git|build|compiler|goVersion|platform|major|minor)`},
	{why: "our own API groups, roles, flow schemas and paths are served too", story: `what is published`, at: `^body\.(groups|items|paths|resources)$`},
	{why: "plugins are API objects", at: `^body\.(definitions|paths)`, ours: `wasmplane`},
	{why: "the two have other addresses and keys", at: `serverAddress|jwks_uri|^body$`, request: `/api|openid|YAML|protobuf`, story: `what is published|people|odd reads`},
	{why: "the administrators' binding has another name", at: `status\.reason$`, ours: `wasmplane:cluster-admins`},
	{why: "the certificates differ", at: `credential-id`},
	{why: "what is checked here alone is among the health checks too, and hooks that stand for nothing here are not", at: `^body$`, request: `/(healthz|livez|readyz)\?verbose`},
	{why: "health checks and errors in text can't be taken for pages", at: `^header$`, ours: `nosniff`},
	{why: "health answers of either are not to be kept, whatever a single one says", at: `^header$`, upstream: `^Cache-Control: no-cache, private$`},
	{why: "flow schemas' conditions are written whenever the server gets to it", request: `FlowSchema`, at: `status\.conditions|managedFields`},
	{why: "when the first namespaces are made is nobody's promise", at: `remainingItemCount$`},

	{why: "the authorizer's name stands in the audit log", at: `^body\.message$`, story: `people`, upstream: `: node: `},
	{why: "conditions of definitions are written whenever a server gets to it", story: `custom resources`, request: `^established$`, at: `status|managedFields`, sometimes: true},
	{why: "as above", story: `life of apiextensions`, request: `^let go$`, at: `status\.conditions|managedFields`, sometimes: true},
	{why: "definitions and APIServices in protobuf are compared by nobody's types here: their bytes have revisions in them", story: `life of api(extensions|registration)`, request: `as protobuf$`, at: `^body$`},

	// Served, where upstream serves less.
	{why: "HEAD is answered wherever GET is", request: `HEAD`, at: `^status$`},
	{why: "logs can be asked for by stream", request: `log\?stream=`},
	{why: "older clients' aggregated discovery is still served", request: `aggregated v2beta1`},
	{why: "aggregated discovery says of each kind whose it is, instead of leaving that out where it is the group's", request: `aggregated`, at: `responseKind|items$`},
	{why: "discovery has an ETag that is asked for again", request: `/apis? aggregated|/openapi`, at: `^header$`},
	{why: "discovery in one path comes in two forms, and says so to caches", at: `^header$`, ours: `^Vary: Accept$`},
	{why: "empty lists are lists, in metadata and tables too", at: `^body\.(items|rows)$`, ours: `^\[\]$`, upstream: `^null$`},
	{why: "a list without a next page says nothing of one, for custom resources too", at: `metadata\.continue$`},
	{why: "the version is in the document that says so", at: `^body\.apiVersion$`, request: `GET /api/v1`},

	// Not served.
	{why: "other methods on health checks and documents have no meaning", request: `(OPTIONS|TRACE|POST|PUT|PATCH|DELETE|CONNECT-BAD) `, at: `^status$`, ours: `^40[45]`},
	{why: "debugging pages are for the server's own address", request: `/(flagz|statusz|debug/pprof|logs|openapi/v3/(apis|version)|openapi/v3/.*)`, at: `^status$`, ours: `^40[34]`},
	{why: "removed with the proxy verb", request: `/api/v1/proxy`},

	// Said better.
	{why: "errors are Status objects, also where nothing is", at: `^(header|body)$`, upstream: `404 page not found|text/plain`},
	{why: "a media type that is not spoken is refused with those that are", at: `^body\.(message|details)$`, upstream: `^(406: Not Acceptable|415: Unsupported Media Type|\{\})$`},
	{why: "as above: nobody asks /version in another language", request: `/version`, at: `^status$`, upstream: `^406`},
	{why: "as above", at: `^body\.message$`, ours: `only the following media types`},
	{why: "a client's mistake is not the server's failure", at: `^status$`, ours: `^4\d\d`, upstream: `^500 `},
	{why: "revisions are numbers that a server gave out, and the answer says so", at: `^body\.message$`, ours: `it has to be a number that a server gave out`},
	{why: "what is said of a wrong parameter names it", at: `^body\.message$`, ours: `^parameter \w+: expected`},
	{why: "keys of the store are nobody's business", at: `^body\.message$`, upstream: `StorageError: invalid object`},
	{why: "the bound on nesting comes before decoding", at: `^body\.message$`, ours: `nests deeper than`},
	{why: "Go types of either server are nobody's business", at: `^body\.message$`, upstream: `handlers\.jsonPatchOp|user\.DefaultInfo`},
	{why: "a header that can't be read is refused, not left out", story: `people`, request: `impersonation`, at: `^status$`, ours: `not well escaped`},
	{why: "errors are JSON or YAML; clients read the content type", at: `^header$`, ours: `^Content-Type: application/json`, upstream: `^Content-Type: application/vnd.kubernetes.protobuf`, request: `get as protobuf$`},
	{why: "of two mistakes in one question another is named", story: `subresources`, request: `another's token`, at: `^status$`, ours: `^422`},
	{why: "an object is looked for before its name is compared", request: `put under another name`, at: `^status$`, ours: `^404`, upstream: `^400`},
	{why: "the kind that is expected is named", request: `scale as a Deployment`, at: `message$`, ours: `does not match the expected kind`},
	{why: "both say that the precondition failed", story: `CustomResourceDefinition`, request: `delete with another`, at: `message$`, ours: `Precondition failed`, upstream: `precondition failed`},
	{why: "the patched object's fields come in another order", at: `^body\.(details\.causes\[\d+\]\.message|message)$`, ours: `Invalid value: "\{`},
	{why: "the object of a patch is named too", at: `causes`, ours: `the object provided is unrecognized`},
	{why: "the range is named", at: `message$`, ours: `is not in the valid range`},
	{why: "all that may not be in a name is named", at: `^body\.message$`, ours: `may not be '\.' or '\.\.'`},
	{why: "the role that is missing is named, not the binding", request: `binds what there is not`},
	{why: "said in one sentence for all", at: `^body\.message$`, ours: `specifying resource version is not allowed when using continue|only the following media types are accepted: PartialObjectMetadata`},
	{why: "the current revision is another one", at: `^body\.message$`, ours: `Too large resource version`},
	{why: "a review's body is not repeated in the error", at: `^body\.message$`, ours: `couldn't get version/kind`},
	{why: "the authorizer's name stands in the audit log", at: `status\.reason$`, upstream: `^node: `},

	{why: "what does not take a method is named", at: `^body\.(message|details\.(kind|group))$`, upstream: `does not allow this method|absent`, story: `what is published|subresources|life of`},
	{why: "a body of no type that is known is refused before where it was going", request: `(PATCH|PUT) /api`, at: `^status$`, upstream: `^405`},
	{why: "a Service that there is not is not without endpoints", request: `services/none`, at: `^status$`},
	{why: "resources are named in the plural, all of them", request: `componentstatuses/none`},
	{why: "who asks for any application type gets JSON", request: `application/\*`, at: `^status$`, upstream: `^406`},
	{why: "an error in YAML says that it is", at: `^header$`, ours: `application/yaml`},
	{why: "the group lists of discovery are described by what they are", request: `/openapi`, at: `^body(\.definitions|\.paths|$)`},
	{why: "of what there is before the first request each server has its own", request: `GET /(api/v1/(endpoints|services|configmaps)|apis/(discovery|networking|coordination).*)$`, at: `^body\.items`},

	{why: "what is deprecated is called so whatever is asked of it", at: `^header$`, ours: `is deprecated in`},
	{why: "a patch that is no object is no patch", story: `patches`, at: `^body\.message$`, ours: `^invalid JSON document$`},

	{why: "several bounds of a LimitRange that are broken are told in no order", story: `admission`, request: `outside of ranges`, at: `message$`, ours: `maximum`, upstream: `maximum`, sometimes: true},

	{why: "a class that was just made is seen a moment later", story: `admission`, request: `default class used`, at: `storageClassName$`, sometimes: true},
	{why: "a definition that goes takes its paths along a moment later", story: `custom resources`, request: `^gone$`, sometimes: true},

	// Details of upstream's that nothing relies on.
	{why: "what is not stored has no managers: questions, bindings, tokens", story: `reviews|subresources`, at: `managedFields$`},
	{why: "as above", story: `reviews`, at: `causes|message$`, upstream: `managedFields`},
	{why: "a rules review repeats the question, and rules come in no order", request: `selfsubjectrulesreviews|alice`, story: `reviews`, at: `spec\.namespace|[rR]esourceRules`},
	{why: "a dry put on nothing answers what would be stored", request: `put what is missing, with a revision`, at: `resourceVersion$`},
	{why: "rows show the object as it is read", at: `rows\[\d+\]\.object\.metadata\.annotations$`, upstream: `absent`},
	{why: "a refusal before fairness was asked names no flow schema", at: `^header$`, ours: `Flowschema`},
	{why: "metadata is that of the object as it is read, with what its version keeps in annotations", story: `DaemonSet`, request: `as metadata$`, at: `annotations$`},
	{why: "the bookmark at the end of the initial events has no spec to default", request: `sendInitialEvents=true`, at: `object\.spec\.`},
	{why: "a continue token on a watch has no meaning and does no harm", request: `watch=true.*continue=x`},
	{why: "a token's refusal names the account", request: `token`, at: `details|message`},
	{why: "two entries of one time may stand in either order", at: `managedFields\[\d+\]`, story: `patches|subresources`, sometimes: true},
	{why: "another version of a custom resource is refused as another kind is", story: `custom resources`, request: `version`},
	{why: "subresources of custom resources are listed by name", story: `custom resources`, at: `resources\[\d+\]`},
	{why: "custom resources have no protobuf", story: `custom resources`, request: `protobuf`},
	{why: "the library that reads charts registers definitions in client-go's scheme, which names the groups that have options to delete", story: `custom resources`, request: `described`, at: `DeleteOptions|WatchEvent`},
	{why: "documents of custom resources have no time of their own", story: `custom resources`, request: `described`, at: `^header$`},
}

type compiled struct {
	decision
	story, request, at, ours, upstream *regexp.Regexp
}

func compileDecisions() []compiled {
	all := make([]compiled, 0, len(decisions))
	for _, d := range decisions {
		all = append(all, compiled{
			d, regexp.MustCompile(d.story), regexp.MustCompile(d.request), regexp.MustCompile(d.at),
			regexp.MustCompile(d.ours), regexp.MustCompile(d.upstream),
		})
	}
	return all
}

// decided finds the decision on a difference; -1 = there is none.
func decided(all []compiled, story, request string, d difference) int {
	for i, c := range all {
		if c.story.MatchString(story) && c.request.MatchString(request) && c.at.MatchString(d.at) &&
			c.ours.MatchString(strings.TrimSpace(d.ours)) && c.upstream.MatchString(strings.TrimSpace(d.theirs)) {
			return i
		}
	}
	return -1
}
