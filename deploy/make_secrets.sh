#!/usr/bin/env bash
# make_secrets.sh FOLDER NAME...: an authority, the coordinator's certificate for the NAMEs (host names
# or addresses that workers and clients dial), a certificate for workers and clients to show, and one
# token a role. All in FOLDER, which must be new; for its owner's eyes.
set -euo pipefail

[ $# -ge 2 ] || { echo "usage: $0 FOLDER NAME..." >&2; exit 2; }
folder=$1
shift
days=${BRIGADE_CERTIFICATE_DAYS:-365}
umask 077
mkdir "$folder"
cd "$folder"

names=""
for name in "$@"; do
  case $name in
    *:* | [0-9]*.[0-9]*.[0-9]*.[0-9]*) names+=,IP:$name ;;
    *) names+=,DNS:$name ;;
  esac
done

new_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
openssl req -x509 "${new_key[@]}" -keyout ca.key -out ca.pem -days "$days" \
  -subj "/CN=Brigade authority" 2>/dev/null

issue() {  # issue NAME EXTENSION
  openssl req "${new_key[@]}" -keyout "$1.key" -out "$1.csr" -subj "/CN=brigade $1" 2>/dev/null
  openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days "$days" \
    -extfile <(echo "$2") -out "$1.pem" 2>/dev/null
  rm "$1.csr"
}
issue coordinator "subjectAltName=${names#,}"
issue peer "extendedKeyUsage=clientAuth"
rm -f ca.srl

for role in client operator worker draft; do
  openssl rand -hex 32 >"$role.token"
done
