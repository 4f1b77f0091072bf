#!/bin/sh
# Makes sure that the parts named as arguments are on this machine: go,
# postgres, mariadb, node. What is missing is installed by apt where there is one
# and we may use it; otherwise this prints what is needed, and fails.
set -eu

have_postgres() {
	[ -n "${LEMMA_PG_BIN:-}" ] || [ -n "${DATABASE_URL:-}" ] && return 0
	for bin in "$(command -v initdb || true)" "$(pg_config --bindir 2>/dev/null || true)/initdb" /usr/lib/postgresql/*/bin/initdb \
		/usr/libexec/postgresql*/initdb /usr/pgsql-*/bin/initdb /usr/local/pgsql/bin/initdb \
		/opt/homebrew/opt/postgresql@*/bin/initdb /usr/local/opt/postgresql@*/bin/initdb; do
		[ -x "$bin" ] && return 0
	done
	return 1
}

have_mariadb() { command -v mariadbd >/dev/null 2>&1 || [ -x /usr/sbin/mariadbd ]; }

# The checkers of the specs and of openapi.yaml come from npm, and run on Node
# 20.19, or 22.12 and newer.
have_node() { command -v node >/dev/null 2>&1 && node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 22 || (a == 22 && b >= 12) || (a == 20 && b >= 19) ? 0 : 1)'; }

packages=
for part in "$@"; do
	case $part in
	go)
		command -v "${GO:-go}" >/dev/null 2>&1 || { echo "Go is needed: https://go.dev/dl, or apt-get install golang" >&2; exit 1; }
		;;
	postgres)
		have_postgres || packages="$packages postgresql"
		;;
	mariadb)
		have_mariadb || packages="$packages mariadb-server-core"
		;;
	node)
		have_node || packages="$packages nodejs"
		command -v npm >/dev/null 2>&1 || packages="$packages npm"
		;;
	*)
		echo "deps: no such part: $part" >&2
		exit 2
		;;
	esac
done
[ -n "$packages" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
	as_root=none
elif [ "$(id -u)" = 0 ]; then
	as_root=
elif command -v sudo >/dev/null 2>&1; then
	as_root="sudo"
else
	as_root=none
fi
if [ "$as_root" = none ]; then
	echo "missing on this machine:$packages" >&2
	echo "Install them by your package manager. Instead of postgresql (14 or newer) you can set" >&2
	echo "LEMMA_PG_BIN to a folder with initdb and postgres in it, or DATABASE_URL to a running server." >&2
	exit 1
fi

echo "installing$packages"
# shellcheck disable=SC2086 # words on purpose
$as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $packages
