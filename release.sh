#!/usr/bin/env bash
# ./release.sh VERSION: sets the version, dates the changelog, builds and checks, commits and tags. Uploads nothing.
set -euo pipefail
cd "$(dirname "$0")"
version="${1:?usage: ./release.sh MAJOR.MINOR.PATCH}"
python="${PYTHON:-.venv/bin/python}"
[[ "$version" =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "error: $version is no MAJOR.MINOR.PATCH" >&2; exit 2; }
[ -z "$(git status --porcelain)" ] || { echo "error: the working tree has changes; commit or stash them" >&2; exit 2; }
git rev-parse -q --verify "refs/tags/v$version" >/dev/null && { echo "error: v$version exists" >&2; exit 2; }
grep -q '^## Unreleased$' CHANGELOG.md || { echo "error: the changelog has no 'Unreleased'" >&2; exit 2; }
sed -i "s/^VERSION = \".*\"/VERSION = \"$version\"/" src/hardcase/environment.py
sed -i "s/^version = \".*\"/version = \"$version\"/" study/pyproject.toml studies/pyproject.toml
sed -i "s/^version: .*/version: $version/" CITATION.cff
sed -i "s/^## Unreleased$/## Unreleased\n\n## $version ($(date -u +%F))/" CHANGELOG.md
rm -rf dist build/lib study/build studies/build
python="$(realpath -s "$python")" dist="$PWD/dist"
for folder in . study studies; do
  (cd "$folder" && "$python" -c "from setuptools import build_meta as b; b.build_sdist('$dist')" >/dev/null)
  (cd "$folder" && "$python" -c "from setuptools import build_meta as b; b.build_wheel('$dist')" >/dev/null)
done
for name in hardcase hardcase_study hardcase_studies; do ls dist | grep -q "^$name-$version-py3-none-any.whl"; done
git commit -qam "Version $version"
git tag -a "v$version" -m "hardcase $version"
echo "v$version is tagged; dist/ holds what to upload. Next: git push --follow-tags, then step 6 of RELEASING.md"
