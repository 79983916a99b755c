#!/usr/bin/env bash
# Starts a cluster, deploys a web server to it, and shows what happened. Called by
# `make run`. Ctrl-C stops the cluster and removes what it put on this host.
#   ONCE=1            clean up and exit when everything was shown
#   NODES=simulated:3 without root: simulated nodes
#   LISTEN=HOST:PORT  where the API listens (127.0.0.1:6443)
set -euo pipefail
cd "$(dirname "$0")/../.."
wasmplane=$PWD/bin/wasmplane
nodes=${NODES:-real}
dir=$PWD/.wasmplane/demo
log=$dir.log
mkdir -p "$PWD/.wasmplane"
export PATH="$PATH:/usr/sbin:/sbin"
unset KUBECONFIG
kubectl() { "$wasmplane" kubectl --data-dir "$dir" "$@"; }
say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
show() { printf '$ %s\n' "$*"; "$@"; }

up= follower=
finish() {
  status=$?
  trap - EXIT INT TERM
  if [ -n "$up" ]; then
    say "cleaning up"
    kill -INT "$up" 2>/dev/null || true
    wait "$up" 2>/dev/null || true
    kill "$follower" 2>/dev/null || true
    "$wasmplane" down --purge --data-dir "$dir" || status=1
  fi
  exit $status
}
trap finish EXIT
trap 'exit 130' INT TERM

say "starting the cluster"
"$wasmplane" up --data-dir "$dir" --config configs/demo/config.yaml --nodes "$nodes" ${LISTEN:+--listen "$LISTEN"} >"$log" 2>&1 &
up=$!
tail -n +1 -f --pid="$up" "$log" &
follower=$!
until grep -q '^Ready in' "$log" 2>/dev/null; do
  if ! kill -0 "$up" 2>/dev/null; then
    wait "$follower" 2>/dev/null || true
    up=
    echo "the cluster did not start" >&2
    exit 1
  fi
  read -rt 0.1 <> <(:) || true
done

if [ "$nodes" = real ]; then
  say "importing the web server's image: no registry is needed"
  show "$wasmplane" image import bin/images/hello.tar --data-dir "$dir"
fi

say "a Deployment of two"
show kubectl apply -f configs/demo/rbac.yaml -f configs/demo/deployment.yaml
show kubectl rollout status deployment/nginx-deployment --timeout=120s
show kubectl get pods -o wide -L team

say "the plugin service-for-deployment has made a Service"
show kubectl wait service/nginx-deployment --for=create --timeout=60s
show kubectl get service nginx-deployment
if [ "$nodes" = real ]; then
  pod=$(kubectl get pods -l app=nginx -o jsonpath='{.items[0].metadata.name}')
  ip=$(kubectl get pods -l app=nginx -o jsonpath='{.items[0].status.podIP}')
  cluster_ip=$(kubectl get service nginx-deployment -o jsonpath='{.spec.clusterIP}')
  say "a pod's address, the Service's address, and, from within a pod, the Service's name"
  show curl -sS --max-time 10 "http://$ip/"
  show curl -sS --max-time 10 "http://$cluster_ip/"
  show kubectl exec "$pod" -- /hello get http://nginx-deployment.default.svc.cluster.local/
fi

say "the plugin no-latest refuses this one"
show kubectl apply -f configs/demo/latest.yaml && { echo "it was not refused" >&2; exit 1; } || true

say "what happened to the Deployment"
show "$wasmplane" trace deployment/nginx-deployment --data-dir "$dir"

if [ -n "${ONCE:-}" ]; then
  say "two pods run; everything above was real"
  exit 0
fi
say "it runs; try: $wasmplane kubectl --data-dir $dir get pods -A"
echo "Ctrl-C stops it and removes everything."
wait "$up"
