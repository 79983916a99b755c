#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts a cluster, deploys a web server to it, and shows what happened. Called by
# `make run`. Ctrl-C stops the cluster and removes what it put on this host.
#   ONCE=1            clean up and exit when everything was shown
#   KEEP=1            exit, also after a failure, and leave the cluster for a look
#   NODES=simulated:3 without root: simulated nodes
#   CLUSTER=NAME      another name than demo: all that is on the host bears it
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
# show prints a command and runs it. Where the script ends by its failure, the end names it.
doing=
show() {
  doing="$*"
  printf '$ %s\n' "$doing"
  "$@"
  doing=
}

up= follower=
# explain prints what is known where something did not happen as expected.
explain() {
  say "this failed: ${doing:-the demo}; what is known about it"
  if [ -n "$up" ]; then
    local ask="--request-timeout=10s"
    show kubectl get deployments,pods,services -A -o wide $ask || true
    local conditions='{range .items[*].status.conditions[?(@.status!="True")]}{.type}={.status} {.reason}: {.message}{"\n"}{end}'
    echo "conditions that are not true:"
    kubectl get deployments,pods,nodes -A -o jsonpath="$conditions" $ask || true
    echo "the last events:"
    kubectl get events -A --sort-by=.metadata.creationTimestamp $ask 2>&1 | tail -n 15 | tee "$log.events" || true
    echo "the pods printed last:"
    kubectl logs -l app=nginx --all-containers --prefix --tail=10 $ask || true
  fi
  if [ -s "$dir/wasmplane.log" ]; then
    echo "the last warnings and errors of $dir/wasmplane.log:"
    grep -E 'level=(WARN|ERROR)' "$dir/wasmplane.log" | tail -n 15 || tail -n 15 "$dir/wasmplane.log"
  fi
  say "what to do"
  if [ "$nodes" = real ]; then
    echo "What this host lacks for a real node, by '$wasmplane check':"
    "$wasmplane" check || true
  fi
  if grep -qs 'pivot' "$log.events"; then
    echo "runc could not give a container its own root, because the root folder here is a chroot or the initial ramdisk."
    echo "A root that is entered by pivot_root works (systemd-nspawn -D FOLDER, unshare --mount with pivot_root)."
  fi
  rm -f "$log.events"
  [ -n "${KEEP:-}" ] || echo "'make run KEEP=1' leaves the cluster as it is after a failure, for a look."
}
keep() {
  say "the cluster is kept (KEEP=1): process $up, log $dir/wasmplane.log"
  local as=
  [ "$(id -u)" != 0 ] || [ -z "${SUDO_UID:-}" ] || as="sudo "
  echo "look:      $as'$wasmplane' kubectl --data-dir '$dir' get pods -A"
  echo "           $as'$wasmplane' trace deployment/nginx-deployment --data-dir '$dir'"
  echo "remove it: $as'$wasmplane' down --purge --data-dir '$dir'"
}
finish() {
  status=$?
  trap - EXIT INT TERM
  [ $status = 0 ] || [ $status = 130 ] || explain
  if [ -n "$up" ] && [ -n "${KEEP:-}" ] && [ $status != 130 ]; then
    kill "$follower" 2>/dev/null || true
    keep
  elif [ -n "$up" ]; then
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

if [ -e "$dir" ]; then
  state=$("$wasmplane" status --data-dir "$dir" 2>/dev/null) || true
  if [[ $state == *"control plane: process"* ]]; then
    echo "a cluster of an earlier run is still there; remove it: '$wasmplane' down --purge --data-dir '$dir'" >&2
    trap - EXIT
    exit 1
  fi
  say "removing what an earlier run left"
  show "$wasmplane" down --purge --data-dir "$dir"
fi

say "starting the cluster"
doing="wasmplane up"
: >"$log"
detach=
[ -z "${KEEP:-}" ] || detach=setsid # Ctrl-C, and the end of this terminal, are not for it
$detach "$wasmplane" up --data-dir "$dir" --config configs/demo/config.yaml --nodes "$nodes" ${CLUSTER:+--cluster-name "$CLUSTER"} ${LISTEN:+--listen "$LISTEN"} >"$log" 2>&1 &
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
  if [ "$SECONDS" -gt 180 ]; then
    echo "the cluster is not ready after 3 minutes; what is ready stands above" >&2
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
  show bin/helpers/hello get "http://$ip/"
  show bin/helpers/hello get "http://$cluster_ip/"
  show kubectl exec "$pod" -- /hello get http://nginx-deployment.default.svc.cluster.local/
fi

say "the plugin no-privileged refuses this one"
doing="the refusal of configs/demo/privileged.yaml by a plugin"
printf '$ kubectl apply -f configs/demo/privileged.yaml\n'
if answer=$(kubectl apply -f configs/demo/privileged.yaml 2>&1) || [[ $answer != *'"no-privileged" denied'* ]]; then
  echo "expected that the plugin no-privileged denies it, found: $answer" >&2
  exit 1
fi
echo "$answer"

say "what happened to the Deployment"
show "$wasmplane" trace deployment/nginx-deployment --data-dir "$dir"

if [ -n "${ONCE:-}" ]; then
  say "two pods run; everything above was real"
  exit 0
fi
if [ -n "${KEEP:-}" ]; then
  exit 0
fi
say "it runs; try: $wasmplane kubectl --data-dir $dir get pods -A"
echo "Ctrl-C stops it and removes everything."
wait "$up"
