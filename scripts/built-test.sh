#!/usr/bin/env bash
# Prints the program of a test that was built: built-test.sh PACKAGE TEST. PACKAGE is the directory of the package below the
# root or below crates. TESTS names the list that `make tests-built` has written.
set -euo pipefail
found=$(grep "\"manifest_path\":\"[^\"]*/$1/Cargo.toml\"" "$TESTS" |
    sed -n "s/.*\"name\":\"$2\".*\"executable\":\"\([^\"]*\)\".*/\1/p" | tail -n 1)
[ -n "$found" ] || { echo "built-test: $TESTS has no test $2 of $1: make tests-built" >&2; exit 1; }
echo "$found"
