# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the examples' build scripts share. $cache is the folder of the toolchains.

# once DIR WHAT COMMAND... runs a command that fills a folder of the cache, which is there afterwards whole or not at all.
once() {
  local dir=$cache/$1 next
  [ ! -d "$dir" ] || return 0
  echo "installing $2 into $dir (once)" >&2
  next=$(mktemp -d -p "$cache" .new-XXXXXX)
  (cd "$next" && "${@:3}") >&2
  mv -T "$next" "$dir" 2>/dev/null || [ -d "$dir" ] # somebody else was faster
  rm -rf "$next"
}

npm_packages() { npm install --no-audit --no-fund --ignore-scripts --loglevel=error "$@" >/dev/null; }
