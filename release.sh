#!/usr/bin/env bash
# ./release.sh VERSION: sets the version, dates the changelog, builds, checks, commits and tags. Uploads nothing.
# ./release.sh build: sdist and wheel in dist/, which is then an index for pip --find-links.
# ./release.sh archive: what Zenodo keeps, in build/hardcase-VERSION.zip: the committed source, its metadata, and dist/.
set -euo pipefail
cd "$(dirname "$0")"
wanted="${1:?usage: ./release.sh MAJOR.MINOR.PATCH | build | archive}"
python="$(realpath -s "${PYTHON:-.venv/bin/python}")"

version() { sed -n 's/^VERSION = "\(.*\)"/\1/p' src/hardcase/environment.py; }

build() {
  rm -rf dist build/lib
  for what in sdist wheel; do
    "$python" -c "from setuptools import build_meta as b; b.build_$what('dist')" >/dev/null
  done
  [ -f "dist/hardcase-$(version)-py3-none-any.whl" ] || { echo "error: dist/ lacks hardcase $(version)" >&2; exit 2; }
  (cd dist && sha256sum ./*.whl ./*.tar.gz > SHA256SUMS)
}

archive() {
  [ -d dist ] || build
  local name="hardcase-$(version)"
  mkdir -p build
  git archive --format zip --prefix "$name/" -o "build/$name.zip" HEAD
  "$python" - "build/$name.zip" "$name" <<'PYTHON'
import sys, zipfile
from pathlib import Path

with zipfile.ZipFile(sys.argv[1], "a", zipfile.ZIP_DEFLATED) as whole:
    for path in sorted(Path("dist").iterdir()):
        whole.write(path, f"{sys.argv[2]}/dist/{path.name}")
    assert {f"{sys.argv[2]}/{name}" for name in ("CITATION.cff", ".zenodo.json", "LICENSE")} <= set(whole.namelist())
PYTHON
  echo "build/$name.zip"
}

case "$wanted" in
  build) build; exit ;;
  archive) archive; exit ;;
esac
[[ "$wanted" =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "error: $wanted is no MAJOR.MINOR.PATCH" >&2; exit 2; }
[ -z "$(git status --porcelain)" ] || { echo "error: the working tree has changes; commit or stash them" >&2; exit 2; }
git rev-parse -q --verify "refs/tags/v$wanted" >/dev/null && { echo "error: v$wanted exists" >&2; exit 2; }
grep -qE "^## (Unreleased|$wanted \(.*\))$" CHANGELOG.md || { echo "error: the changelog has neither 'Unreleased' nor $wanted" >&2; exit 2; }
today="$(date -u +%F)"
sed -i "s/^VERSION = \".*\"/VERSION = \"$wanted\"/" src/hardcase/environment.py
sed -i "s/^version: .*/version: $wanted/; s/^date-released: .*/date-released: $today/" CITATION.cff
sed -i "s/\"version\": \".*\"/\"version\": \"$wanted\"/; s/\"publication_date\": \".*\"/\"publication_date\": \"$today\"/" .zenodo.json
sed -i "s/^version: .*/version: $wanted/" teams/fiftyone/fiftyone.yml
if grep -q "^## $wanted (" CHANGELOG.md; then
  sed -i "s/^## $wanted (.*)$/## $wanted ($today)/" CHANGELOG.md
else
  sed -i "s/^## Unreleased$/## Unreleased\n\n## $wanted ($today)/" CHANGELOG.md
fi
build
git diff --quiet || git commit -qam "Version $wanted"
git tag -a "v$wanted" -m "hardcase $wanted"
archive
echo "v$wanted is tagged; dist/ holds what to upload. Next: git push --follow-tags, then step 6 of RELEASING.md"
