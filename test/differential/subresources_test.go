// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"fmt"
	"strings"
)

// reviews are questions to the server.
func reviews() story {
	s := story{name: "reviews"}
	authz, authn := "/apis/authorization.k8s.io/v1/", "/apis/authentication.k8s.io/v1/"
	for i, r := range []struct{ path, body string }{
		{authz + "subjectaccessreviews", `{}`},
		{authz + "subjectaccessreviews", `{"spec":{}}`},
		{authz + "subjectaccessreviews", `{"spec":{"user":"a"}}`},
		{authz + "subjectaccessreviews", `{"spec":{"user":"a","resourceAttributes":{},"nonResourceAttributes":{}}}`},
		{authz + "subjectaccessreviews", `{"spec":{"user":"a","resourceAttributes":{"verb":"get","resource":"pods","namespace":"x"}}}`},
		{authz + "subjectaccessreviews", `{"spec":{"groups":["system:masters"],"resourceAttributes":{"verb":"get","resource":"pods"}}}`},
		{authz + "subjectaccessreviews", `{"spec":{"user":"system:kube-scheduler","resourceAttributes":{"verb":"create","resource":"pods","subresource":"binding","namespace":"x"}}}`},
		{authz + "subjectaccessreviews", `{"spec":{"user":"a","nonResourceAttributes":{"path":"/healthz","verb":"get"}}}`},
		{authz + "subjectaccessreviews", `{"spec":{"user":"a","groups":["system:authenticated"],"nonResourceAttributes":{"path":"/api","verb":"get"}}}`},
		{authz + "subjectaccessreviews", `{"metadata":{"name":"x"},"spec":{"user":"a","resourceAttributes":{"verb":"get"}}}`},
		{authz + "subjectaccessreviews", `{"metadata":{"namespace":"x"},"spec":{"user":"a","resourceAttributes":{"verb":"get"}}}`},
		{authz + "subjectaccessreviews", `{"spec":{"user":"a","resourceAttributes":{"fieldSelector":{"rawSelector":"a=b","requirements":[{"key":"a","operator":"In","values":["b"]}]}}}}`},
		{authz + "subjectaccessreviews", `{"spec":{"user":"a","resourceAttributes":{"fieldSelector":{"rawSelector":"a==="},"labelSelector":{"requirements":[{"key":"","operator":"Bad"}]}}}}`},
		{authz + "subjectaccessreviews", `{"spec":{"user":"a","resourceAttributes":{"verb":"list","resource":"pods","fieldSelector":{"rawSelector":"spec.nodeName=n"}}}}`},
		{authz + "subjectaccessreviews", `{"status":{"allowed":true},"spec":{"user":"system:node:n","groups":["system:nodes"],"resourceAttributes":{"verb":"get","resource":"secrets","namespace":"x","name":"y"}}}`},
		{authz + "selfsubjectaccessreviews", `{}`},
		{authz + "selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{"verb":"*","resource":"*"}}}`},
		{authz + "selfsubjectaccessreviews", `{"spec":{"nonResourceAttributes":{"path":"/x","verb":"get"}}}`},
		{authz + "selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{},"nonResourceAttributes":{}}}`},
		{authz + "namespaces/stories/localsubjectaccessreviews", `{}`},
		{authz + "namespaces/stories/localsubjectaccessreviews", `{"spec":{"user":"a","resourceAttributes":{"verb":"get","resource":"pods","namespace":"stories"}}}`},
		{authz + "namespaces/stories/localsubjectaccessreviews", `{"metadata":{"namespace":"stories"},"spec":{"user":"a","resourceAttributes":{"verb":"get","resource":"pods","namespace":"other"}}}`},
		{authz + "namespaces/stories/localsubjectaccessreviews", `{"metadata":{"namespace":"other"},"spec":{"user":"a","resourceAttributes":{"verb":"get","namespace":"stories"}}}`},
		{authz + "namespaces/stories/localsubjectaccessreviews", `{"metadata":{"namespace":"stories"},"spec":{"user":"a","nonResourceAttributes":{"verb":"get"}}}`},
		{authz + "selfsubjectrulesreviews", `{}`},
		{authz + "selfsubjectrulesreviews", `{"spec":{"namespace":"stories"}}`},
		{authn + "tokenreviews", `{}`},
		{authn + "tokenreviews", `{"spec":{"token":"nonsense"}}`},
		{authn + "tokenreviews", `{"spec":{"token":"a.b.c","audiences":["x"]}}`},
		{authn + "tokenreviews", `{"metadata":{"name":"x"},"spec":{"token":"x"}}`},
		{authn + "selfsubjectreviews", `{}`},
		{authn + "selfsubjectreviews", `{"metadata":{"name":"x"}}`},
	} {
		s.requests = append(s.requests, request{name: fmt.Sprintf("%d %s %s", i, r.path, r.body), method: "POST", path: r.path, body: r.body},
			request{name: fmt.Sprintf("%d dry strict", i), method: "POST", path: r.path + "?dryRun=All&fieldValidation=Strict", body: strings.Replace(r.body, "{", `{"unknown":1,`, 1)},
			request{name: fmt.Sprintf("%d alice", i), method: "POST", path: r.path, body: r.body, as: "alice"})
	}
	return s
}

// pod subresources, accounts' tokens, namespaces' ends and other subresources.
func subresources() story {
	pod := pods + "/sub"
	accounts := "/api/v1/namespaces/stories/serviceaccounts"
	csrs := "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	s := story{name: "subresources", requests: []request{
		{method: "POST", path: pods, body: `{"metadata":{"name":"sub","labels":{"app":"sub"}},"spec":` + podSpec + `}`},
		get(pod + "/log"), get(pod + "/log?container=none"), get(pod + "/log?tailLines=-1"), get(pod + "/log?limitBytes=0"),
		get(pod + "/log?sinceSeconds=0"), get(pod + "/log?sinceSeconds=1&sinceTime=2024-01-02T03:04:05Z"), get(pod + "/log?tailLines=x"),
		get(pod + "/log?stream=Bad"), get(pod + "/log?stream=Stdout&tailLines=1"), get(pod + "/log?previous=maybe"),
		get(pod + "/log?sinceTime=bad"),
		get(pod + "/exec"), get(pod + "/exec?command=a"), get(pod + "/exec?command=a&container=none&stdout=true"),
		get(pod + "/exec?command=a&stdout=true"), get(pod + "/attach"), get(pod + "/attach?stdout=true&container=none"),
		get(pod + "/attach?stdout=true&tty=true&stderr=true"), get(pod + "/portforward"), get(pod + "/portforward?ports=x"), get(pod + "/proxy"),
		get(pod + "/proxy/x"), get(pods + "/sub:80/proxy/"), get(pods + "/sub:bad/proxy/"), get(pods + "/http:sub:80/proxy/"),
		{method: "POST", path: pod + "/binding", body: `{}`},
		{method: "POST", path: pod + "/binding", name: "bind to a pod", body: `{"target":{"kind":"Pod","name":"x"}}`},
		{method: "POST", path: pod + "/binding", name: "bind another", body: `{"metadata":{"name":"other"},"target":{"kind":"Node","name":"n"}}`},
		{method: "POST", path: pod + "/binding", name: "bind another uid", body: `{"metadata":{"name":"sub","uid":"x"},"target":{"kind":"Node","name":"n"}}`},
		{method: "POST", path: pods + "/none/binding", body: `{"target":{"kind":"Node","name":"n"}}`},
		{method: "POST", path: "/api/v1/namespaces/stories/bindings", body: `{"metadata":{"name":"none"},"target":{"kind":"Node","name":"n"}}`},
		get("/api/v1/namespaces/stories/bindings/none"), {method: "PUT", path: "/api/v1/namespaces/stories/bindings/none", body: `{"metadata":{"name":"none"},"target":{"kind":"Node","name":"n"}}`},
		{method: "DELETE", path: "/api/v1/namespaces/stories/bindings/none"}, get("/apis/authentication.k8s.io/v1/tokenreviews/none"),
		{method: "POST", path: "/api/v1/namespaces/stories/bindings/none", body: `{"metadata":{"name":"none"},"target":{"kind":"Node","name":"n"}}`},
		{method: "POST", path: pod + "/binding?dryRun=All", body: `{"metadata":{"annotations":{"a":"b"}},"target":{"name":"n"}}`},
		{method: "POST", path: pod + "/binding", name: "bind", body: `{"metadata":{"annotations":{"a":"b"}},"target":{"kind":"Node","name":"n"}}`},
		{method: "POST", path: pod + "/binding", name: "bind again", body: `{"target":{"kind":"Node","name":"n"}}`},
		get(pod),
		get(pod + "/log?container=c"), get(pod + "/exec?command=a&stdout=true&container=c"),
		{method: "POST", path: pod + "/eviction", body: `{}`, name: "evict dry", header: nil},
		{method: "POST", path: pods + "/none/eviction", body: `{}`},
		{method: "POST", path: pod + "/eviction", name: "evict another", body: `{"metadata":{"name":"other"}}`},
		{method: "POST", path: pod + "/eviction?dryRun=All", name: "evict of another group", body: `{"apiVersion":"policy/v1beta1","kind":"Eviction","metadata":{"name":"sub"}}`},
		{method: "POST", path: pod + "/eviction?dryRun=bad", body: `{}`},
		{method: "POST", path: pod + "/eviction", name: "evict, preconditions", body: `{"deleteOptions":{"preconditions":{"uid":"x"}}}`},
		{method: "PATCH", path: pod + "/ephemeralcontainers", contentType: strategic, body: `{"spec":{"ephemeralContainers":[{"name":"e"}]}}`},
		{method: "PATCH", path: pod + "/ephemeralcontainers", name: "debug", contentType: strategic, body: `{"spec":{"ephemeralContainers":[{"name":"e","image":"i"}]}}`},
		{method: "PATCH", path: pod + "/resize", contentType: strategic, body: `{"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"2"}}}]}}`},
		{method: "PATCH", path: pod + "/resize", name: "resize an image", contentType: strategic, body: `{"spec":{"containers":[{"name":"c","image":"x"}]}}`},
		{method: "PATCH", path: pod + "/resize", name: "resize to nothing", contentType: strategic, body: `{"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"10m"}}}]}}`},
		{method: "PATCH", path: pod, name: "add a container", contentType: strategic, body: `{"spec":{"containers":[{"name":"d","image":"x"}]}}`},
		{method: "PATCH", path: pod, name: "change the image", contentType: strategic, body: `{"spec":{"containers":[{"name":"c","image":"y"}]}}`},
		{method: "PATCH", path: pod, name: "move", contentType: strategic, body: `{"spec":{"nodeName":"x"}}`},
		{method: "PATCH", path: pod + "/status", name: "status", contentType: strategic, body: `{"status":{"phase":"Running","podIP":"192.0.2.1","conditions":[{"type":"Ready","status":"True"}]}}`},
		{method: "PATCH", path: pod + "/status", name: "bad status", contentType: strategic, body: `{"status":{"podIP":"x","containerStatuses":[{"name":"c","state":{"running":{}}}]}}`},
		get(pod + "/proxy?path=x"), get(pods + "?fieldSelector=status.phase%3DRunning,spec.nodeName%3Dn"),
		{method: "GET", path: pods + "?fieldSelector=spec.nodeName%3Dn", name: "bound as a table", accept: tables},
		{method: "DELETE", path: pod, name: "delete gracefully", body: `{"gracePeriodSeconds":7}`},
		{method: "DELETE", path: pod, name: "delete sooner", body: `{"gracePeriodSeconds":3}`},
		{method: "DELETE", path: pod, name: "delete later", body: `{"gracePeriodSeconds":30}`},
		{method: "POST", path: pod + "/eviction", name: "evict what is going", body: `{}`},
		{method: "DELETE", path: pod, name: "delete now", body: `{"gracePeriodSeconds":0}`},
		{method: "GET", path: pod, name: "gone"},
		{method: "POST", path: accounts + "/default/token", body: `{}`},
		{method: "POST", path: accounts + "/none/token", body: `{"spec":{}}`},
		{method: "POST", path: accounts + "/default/token", name: "brief token", body: `{"spec":{"expirationSeconds":1}}`},
		{method: "POST", path: accounts + "/default/token", name: "long token", body: `{"spec":{"expirationSeconds":99999999999}}`},
		{method: "POST", path: accounts + "/default/token", name: "bound to a pod", body: `{"spec":{"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"none"}}}`},
		{method: "POST", path: accounts + "/default/token", name: "bound to nothing", body: `{"spec":{"boundObjectRef":{"kind":"ConfigMap","apiVersion":"v1","name":"none"}}}`},
		{method: "POST", path: accounts + "/default/token", name: "bound wrongly", body: `{"spec":{"boundObjectRef":{"kind":"Secret","apiVersion":"v1","name":"none","uid":"x"}}}`},
		{method: "POST", path: accounts + "/default/token", name: "another's token", body: `{"metadata":{"name":"x","namespace":"y"},"spec":{"audiences":["a"]}}`},
		{method: "POST", path: accounts + "/default/token?dryRun=All", body: `{"spec":{"audiences":["a"],"expirationSeconds":601}}`},
		{method: "POST", path: "/api/v1/namespaces", name: "a namespace", body: `{"metadata":{"name":"ending"}}`},
		{method: "PUT", path: "/api/v1/namespaces/ending/finalize", name: "finalize badly", body: `{"metadata":{"name":"ending"},"spec":{"finalizers":["bad finalizer"]}}`},
		{method: "PUT", path: "/api/v1/namespaces/ending/finalize", name: "finalize another", body: `{"metadata":{"name":"other"}}`},
		{method: "DELETE", path: "/api/v1/namespaces/ending", name: "end it"},
		{method: "DELETE", path: "/api/v1/namespaces/ending", name: "end it again"},
		{method: "GET", path: "/api/v1/namespaces/ending", name: "ending"},
		{method: "POST", path: "/api/v1/namespaces/ending/configmaps", name: "create in the ending", body: `{"metadata":{"name":"a"}}`},
		{method: "POST", path: "/api/v1/namespaces/none/configmaps", name: "create in none", body: `{"metadata":{"name":"a"}}`},
		{method: "PUT", path: "/api/v1/namespaces/ending/finalize", name: "finalize", body: `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"ending"},"spec":{"finalizers":[]}}`},
		{method: "GET", path: "/api/v1/namespaces/ending", name: "ended"},
		{method: "DELETE", path: "/api/v1/namespaces/default", name: "end default"},
		{method: "DELETE", path: "/api/v1/namespaces/kube-system", name: "end the system"},
		{method: "DELETE", path: "/api/v1/namespaces", name: "end all"},
		{method: "POST", path: csrs, name: "a request", body: `{"metadata":{"name":"sub"},"spec":{"request":"` + csr + `","signerName":"example.com/s","usages":["client auth"]}}`},
		{method: "PATCH", path: csrs + "/sub/approval", name: "approve badly", contentType: mergePatch, body: `{"status":{"conditions":[{"type":"Approved","status":"False"}]}}`},
		{method: "PATCH", path: csrs + "/sub/approval", name: "approve", contentType: mergePatch, body: `{"status":{"conditions":[{"type":"Approved","status":"True","reason":"r"}]}}`},
		{method: "PATCH", path: csrs + "/sub/approval", name: "deny too", contentType: mergePatch, body: `{"status":{"conditions":[{"type":"Denied","status":"True","reason":"r"}]}}`},
		{method: "PATCH", path: csrs + "/sub/status", name: "a bad certificate", contentType: mergePatch, body: `{"status":{"certificate":"eA=="}}`},
		{method: "PUT", path: deployments + "/none/scale", body: `{"metadata":{"name":"none","namespace":"stories"},"spec":{"replicas":1}}`},
		{method: "POST", path: deployments, name: "a Deployment", body: `{"metadata":{"name":"scaled"},"spec":{"selector":` + selector + `,"template":` + podTemplate + `}}`},
		{method: "PUT", path: deployments + "/scaled/scale", name: "scale", body: `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"scaled","namespace":"stories"},"spec":{"replicas":4}}`},
		{method: "PUT", path: deployments + "/scaled/scale", name: "scale another", body: `{"metadata":{"name":"other"},"spec":{"replicas":4}}`},
		{method: "PUT", path: deployments + "/scaled/scale", name: "scale with an old revision", body: `{"metadata":{"name":"scaled","namespace":"stories","resourceVersion":"1"},"spec":{"replicas":4}}`},
		{method: "PUT", path: deployments + "/scaled/scale", name: "scale as a Deployment", body: `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"scaled"},"spec":{"replicas":4}}`},
		{method: "PATCH", path: deployments + "/scaled/scale?fieldManager=hpa", name: "apply a scale", contentType: applyYAML, body: "apiVersion: autoscaling/v1\nkind: Scale\nmetadata: {name: scaled}\nspec: {replicas: 5}"},
		{method: "PATCH", path: deployments + "/scaled/scale?fieldManager=hpa&force=true", name: "apply a scale with force", contentType: applyYAML, body: "apiVersion: autoscaling/v1\nkind: Scale\nmetadata: {name: scaled}\nspec: {replicas: 5}"},
		{method: "GET", path: deployments + "/scaled", name: "scaled"},
		{method: "GET", path: deployments + "/scaled/scale", name: "its scale", accept: tables},
		{method: "GET", path: deployments + "/scaled/scale", name: "its scale as metadata", accept: partial},
		{method: "GET", path: deployments + "/scaled/scale", name: "its scale as protobuf", accept: protobufType},
		{method: "DELETE", path: deployments + "/scaled?propagationPolicy=Foreground", name: "delete in the foreground"},
		{method: "GET", path: deployments + "/scaled", name: "being deleted"},
		{method: "DELETE", path: deployments + "/scaled?propagationPolicy=Orphan", name: "orphan"},
		{method: "DELETE", path: deployments + "/scaled?propagationPolicy=Background", name: "delete in the background"},
	}}
	for i := range s.requests {
		r := &s.requests[i]
		if r.name == "" {
			r.name = fmt.Sprintf("%d %s %s", i, r.method, r.path)
		}
	}
	return s
}

// admitted are the built-in admission plugins' answers.
func admitted() story {
	ns := "/api/v1/namespaces/guarded"
	pod := func(spec string) string { return `{"metadata":{"name":"p"},"spec":` + spec + `}` }
	s := story{name: "admission", requests: []request{
		{name: "a namespace", method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"guarded"}}`},
		{name: "no account", method: "POST", path: ns + "/pods", body: pod(podSpec)},
		{name: "an account", method: "POST", path: ns + "/serviceaccounts", body: `{"metadata":{"name":"default"}}`},
		{name: "an account that there is not", method: "POST", path: ns + "/pods", body: pod(`{"serviceAccountName":"none","containers":[{"name":"c","image":"i"}]}`)},
		{name: "a priority", method: "POST", path: ns + "/pods", body: pod(`{"priorityClassName":"none","containers":[{"name":"c","image":"i"}]}`)},
		{name: "a priority's value", method: "POST", path: ns + "/pods", body: pod(`{"priority":7,"containers":[{"name":"c","image":"i"}]}`)},
		{name: "the system's priority", method: "POST", path: ns + "/pods?dryRun=All", body: pod(`{"priorityClassName":"system-node-critical","containers":[{"name":"c","image":"i"}]}`)},
		{name: "a runtime class", method: "POST", path: ns + "/pods", body: pod(`{"runtimeClassName":"none","containers":[{"name":"c","image":"i"}]}`)},
		{name: "ranges", method: "POST", path: ns + "/limitranges", body: `{"metadata":{"name":"r"},"spec":{"limits":[{"type":"Container","max":{"cpu":"1","memory":"1Gi"},"min":{"cpu":"10m"},"default":{"cpu":"500m"},"defaultRequest":{"cpu":"100m"},"maxLimitRequestRatio":{"cpu":"6"}},{"type":"Pod","max":{"cpu":"2"}},{"type":"PersistentVolumeClaim","max":{"storage":"1Gi"},"min":{"storage":"1Mi"}}]}}`},
		{name: "within ranges", method: "POST", path: ns + "/pods?dryRun=All", body: pod(`{"containers":[{"name":"c","image":"i","resources":{"limits":{"memory":"1Mi"}}}]}`)},
		{name: "outside of ranges", method: "POST", path: ns + "/pods", body: pod(`{"initContainers":[{"name":"i","image":"i"}],"containers":[{"name":"c","image":"i","resources":{"limits":{"cpu":"3","memory":"2Gi"},"requests":{"cpu":"1m"}}}]}`)},
		{name: "a large claim", method: "POST", path: ns + "/persistentvolumeclaims", body: `{"metadata":{"name":"c"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"2Gi"}}}}`},
		{name: "quota", method: "POST", path: ns + "/resourcequotas", body: `{"metadata":{"name":"q"},"spec":{"hard":{"pods":"1","requests.cpu":"150m","limits.memory":"1Gi","configmaps":"2","services.loadbalancers":"0","count/deployments.apps":"0"}}}`},
		{name: "quota's status", method: "PATCH", path: ns + "/resourcequotas/q/status", contentType: mergePatch, body: `{"status":{"hard":{"pods":"1","requests.cpu":"150m","limits.memory":"1Gi","configmaps":"2","services.loadbalancers":"0","count/deployments.apps":"0"},"used":{"pods":"0","requests.cpu":"0","limits.memory":"0","configmaps":"1","services.loadbalancers":"0","count/deployments.apps":"0"}}}`},
		{name: "quota without limits", method: "POST", path: ns + "/pods", body: pod(`{"containers":[{"name":"c","image":"i"}]}`)},
		{name: "quota without", method: "POST", path: ns + "/pods", body: pod(`{"containers":[{"name":"c","image":"i","resources":{"limits":{"memory":"1Mi","cpu":"600m"},"requests":{"cpu":"200m"}}}]}`)},
		{name: "quota within", method: "POST", path: ns + "/pods", body: pod(`{"containers":[{"name":"c","image":"i","resources":{"limits":{"memory":"1Mi","cpu":"500m"},"requests":{"cpu":"100m"}}}]}`)},
		{name: "quota's use", method: "GET", path: ns + "/resourcequotas/q"},
		{name: "quota beyond", method: "POST", path: ns + "/pods", body: strings.Replace(pod(`{"containers":[{"name":"c","image":"i","resources":{"limits":{"memory":"1Mi","cpu":"500m"},"requests":{"cpu":"100m"}}}]}`), `"p"`, `"p2"`, 1)},
		{name: "quota of Deployments", method: "POST", path: "/apis/apps/v1/namespaces/guarded/deployments", body: `{"metadata":{"name":"d"},"spec":{"selector":` + selector + `,"template":` + podTemplate + `}}`},
		{name: "quota of balancers", method: "POST", path: ns + "/services", body: `{"metadata":{"name":"s"},"spec":{"type":"LoadBalancer","ports":[{"port":80}]}}`},
		{name: "quota of configmaps", method: "POST", path: ns + "/configmaps", body: `{"metadata":{"name":"a"}}`},
		{name: "quota of configmaps beyond", method: "POST", path: ns + "/configmaps", body: `{"metadata":{"name":"b"}}`},
		{name: "quota, dry", method: "POST", path: ns + "/configmaps?dryRun=All", body: `{"metadata":{"name":"c"}}`},
		{name: "bad security level", method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"bad","labels":{"pod-security.kubernetes.io/enforce":"bad","pod-security.kubernetes.io/warn-version":"v9"}}}`},
		{name: "secure namespace", method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"secure","labels":{"pod-security.kubernetes.io/enforce":"baseline","pod-security.kubernetes.io/warn":"restricted","pod-security.kubernetes.io/audit":"restricted"}}}`},
		{name: "its account", method: "POST", path: "/api/v1/namespaces/secure/serviceaccounts", body: `{"metadata":{"name":"default"}}`},
		{name: "warned", method: "POST", path: "/api/v1/namespaces/secure/pods", body: pod(podSpec)},
		{name: "refused", method: "POST", path: "/api/v1/namespaces/secure/pods", body: pod(`{"hostNetwork":true,"hostPID":true,"volumes":[{"name":"h","hostPath":{"path":"/"}}],"containers":[{"name":"c","image":"i","securityContext":{"privileged":true,"capabilities":{"add":["SYS_ADMIN"]}},"ports":[{"containerPort":80,"hostPort":80}]}]}`)},
		{name: "warned Deployment", method: "POST", path: "/apis/apps/v1/namespaces/secure/deployments", body: `{"metadata":{"name":"d"},"spec":{"selector":` + selector + `,"template":` + strings.Replace(podTemplate, `"spec":{`, `"spec":{"hostNetwork":true,`, 1) + `}}`},
		{name: "restrict what there is", method: "PATCH", path: "/api/v1/namespaces/secure", contentType: mergePatch, body: `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`},
		{name: "a claim of a class", method: "POST", path: "/api/v1/namespaces/secure/persistentvolumeclaims?dryRun=All", body: `{"metadata":{"name":"c"},"spec":{"storageClassName":"none","accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`},
		{name: "resize a claim", method: "PATCH", path: "/api/v1/namespaces/secure/persistentvolumeclaims/none", contentType: mergePatch, body: `{}`},
		{name: "default classes", method: "POST", path: "/apis/storage.k8s.io/v1/storageclasses", body: `{"metadata":{"name":"std","annotations":{"storageclass.kubernetes.io/is-default-class":"true"}},"provisioner":"p"}`},
		{name: "default class used", method: "POST", path: "/api/v1/namespaces/secure/persistentvolumeclaims?dryRun=All", body: `{"metadata":{"name":"c"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`},
		{name: "default ingress class", method: "POST", path: "/apis/networking.k8s.io/v1/ingressclasses", body: `{"metadata":{"name":"std","annotations":{"ingressclass.kubernetes.io/is-default-class":"true"}},"spec":{"controller":"a/b"}}`},
		{name: "default ingress class used", method: "POST", path: "/apis/networking.k8s.io/v1/namespaces/secure/ingresses?dryRun=All", body: `{"metadata":{"name":"i"},"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}}`},
		{name: "two global defaults", method: "POST", path: "/apis/scheduling.k8s.io/v1/priorityclasses", body: `{"metadata":{"name":"one"},"value":1,"globalDefault":true}`},
		{name: "second global default", method: "POST", path: "/apis/scheduling.k8s.io/v1/priorityclasses", body: `{"metadata":{"name":"two"},"value":1,"globalDefault":true}`},
		{name: "a system priority", method: "POST", path: "/apis/scheduling.k8s.io/v1/priorityclasses", body: `{"metadata":{"name":"system-x"},"value":2000000001}`},
		{name: "external addresses", method: "POST", path: "/api/v1/namespaces/secure/services?dryRun=All", body: `{"metadata":{"name":"s"},"spec":{"externalIPs":["192.0.2.1"],"ports":[{"port":80}]}}`},
		{name: "taken address", method: "POST", path: "/api/v1/namespaces/secure/services", body: `{"metadata":{"name":"s"},"spec":{"clusterIP":"10.96.0.1","ports":[{"port":80}]}}`},
		{name: "address out of range", method: "POST", path: "/api/v1/namespaces/secure/services", body: `{"metadata":{"name":"s"},"spec":{"clusterIP":"192.0.2.1","ports":[{"port":80}]}}`},
		{name: "port out of range", method: "POST", path: "/api/v1/namespaces/secure/services", body: `{"metadata":{"name":"s"},"spec":{"type":"NodePort","ports":[{"port":80,"nodePort":80}]}}`},
		{name: "node port", method: "POST", path: "/api/v1/namespaces/secure/services", body: `{"metadata":{"name":"s"},"spec":{"type":"NodePort","ports":[{"name":"a","port":80,"nodePort":30080}]}}`},
		{name: "node port taken", method: "POST", path: "/api/v1/namespaces/secure/services", body: `{"metadata":{"name":"s2"},"spec":{"type":"NodePort","ports":[{"port":80,"nodePort":30080}]}}`},
		{name: "to a name", method: "PATCH", path: "/api/v1/namespaces/secure/services/s", contentType: mergePatch, body: `{"spec":{"type":"ExternalName","externalName":"example.com"}}`},
		{name: "to two families", method: "POST", path: "/api/v1/namespaces/secure/services", body: `{"metadata":{"name":"s3"},"spec":{"ipFamilyPolicy":"RequireDualStack","ports":[{"port":80}]}}`},
		{name: "escalate", method: "POST", path: "/apis/rbac.authorization.k8s.io/v1/namespaces/secure/roles", body: `{"metadata":{"name":"r"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`, as: "alice"},
		{name: "alice may make roles", method: "POST", path: "/apis/rbac.authorization.k8s.io/v1/clusterroles", body: `{"metadata":{"name":"roles"},"rules":[{"apiGroups":["rbac.authorization.k8s.io"],"resources":["*"],"verbs":["create","update","patch","get"]}]}`},
		{name: "alice is bound", method: "POST", path: "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body: `{"metadata":{"name":"alice"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"roles"},"subjects":[{"kind":"User","name":"alice","apiGroup":"rbac.authorization.k8s.io"}]}`},
		{name: "alice escalates", method: "POST", path: "/apis/rbac.authorization.k8s.io/v1/namespaces/secure/roles?dryRun=All", body: `{"metadata":{"name":"r"},"rules":[{"apiGroups":[""],"resources":["pods","secrets"],"verbs":["get"]},{"apiGroups":["a"],"resources":["b"],"resourceNames":["c"],"verbs":["d"]}]}`, as: "alice", eventually: "attempting to grant"},
		{name: "alice binds", method: "POST", path: "/apis/rbac.authorization.k8s.io/v1/namespaces/secure/rolebindings", body: `{"metadata":{"name":"r"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"},"subjects":[]}`, as: "alice"},
		{name: "alice binds what there is not", method: "POST", path: "/apis/rbac.authorization.k8s.io/v1/namespaces/secure/rolebindings", body: `{"metadata":{"name":"r"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"none"},"subjects":[]}`, as: "alice"},
		{name: "change a role reference", method: "PATCH", path: "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/alice", contentType: mergePatch, body: `{"roleRef":{"name":"view"}}`},
	}}
	return s
}
