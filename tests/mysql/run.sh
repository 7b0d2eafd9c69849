#!/usr/bin/env bash
# MySQL as a service: the probes' tests with a real server, and the end-to-end test of its template, in a namespace in which
# /usr/sbin/mysqld is MySQL. Wants the tests built, and their list in TESTS: make mysql-test.
set -euo pipefail
cd "$(dirname "$0")/../.."

MAINSTAY_MYSQL=$(scripts/mysql.sh)
export MAINSTAY_MYSQL
probes=$(scripts/built-test.sh probe mysql)
"$probes" --ignored
end_to_end=$(realpath "$(scripts/built-test.sh tests e2e)")
export MAINSTAY_E2E_LAB=mysql
# Debian's MariaDB has a link of this name.
cd tests
# shellcheck disable=SC2016
exec unshare --mount --propagation private sh -ec '
    mount --bind "$MAINSTAY_MYSQL/mysqld" "$(readlink -f /usr/sbin/mysqld)"
    exec "$0" --ignored troubles_mysql' "$end_to_end"
