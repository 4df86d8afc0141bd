#!/bin/sh
# Makes the secrets of compose.yaml, once; what is there is never overwritten.
set -eu
cd "$(dirname "$0")"
[ ! -e .env ] && [ ! -e secrets ] || { echo "the secrets are there: .env and secrets/" >&2; exit 1; }
new() { od -An -N 32 -tx1 /dev/urandom | tr -d ' \n'; }
umask 077
mkdir secrets # nobody else on this machine can enter it
operator=$(new) scraper=$(new)
printf 'operator admin %s\nscraper read %s\n' "$operator" "$scraper" > secrets/tokens
printf '%s' "$scraper" > secrets/scraper
printf '%s' "$operator" > secrets/operator
printf 'POSTGRES_PASSWORD=%s\nGRAFANA_PASSWORD=%s\n' "$(new)" "$(new)" > .env
chmod 644 secrets/tokens secrets/scraper # the users of the containers read them
echo "made .env and secrets/; your token is in secrets/operator"
