#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs one group of upstream's tests of kubectl in the folder that has its scripts.
# Usage: driver.sh GROUP, or driver.sh runTests for what upstream asks between the groups
# Environment: SECURE_API_PORT (of the server), HOME, TMPDIR and KUBE_TEMP, folders of their own.
set -o errexit -o nounset -o pipefail
group=${1:?GROUP}
source hack/lib/init.sh
source hack/lib/test.sh
# It tries out first that a failure is seen, and prints one for that.
source test/cmd/legacy-script.sh
echo "=== ${group}"
trap stop-proxy EXIT
kube::util::ensure-gnu-sed

# As upstream's setup does, without building anything.
CONTEXT=test
kubectl config set-credentials test-admin --token admin-token
kubectl config set-cluster local --insecure-skip-tls-verify --server "https://127.0.0.1:${SECURE_API_PORT}"
kubectl config set-context "${CONTEXT}" --user test-admin --cluster local
kubectl config use-context "${CONTEXT}"
export SUPPORTED_RESOURCES=("*")

# In place of upstream's, which asks for a report as XML; a group sets errexit itself, for
# which it must not be part of a condition.
record_command() {
  [[ ${group} != runTests ]] || return 0
  # Some groups work in the namespace that the one before them left as the current one.
  create_and_use_new_namespace
  set +o nounset +o errexit
  ("${group}")
  exit $?
}
# With WHAT, runTests prepares what groups use and calls record_command once.
[[ ${group} == runTests ]] || WHAT=selected
runTests
