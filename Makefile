# `make demo` and `make test` need nothing but Python 3.11 or newer and pip; they make their own environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
unexport PYTHONDONTWRITEBYTECODE
export MKL_CBWR = AUTO,STRICT

.PHONY: venv demo test lint bench gpu insight gpu-pack gpu-unpack catalogue docs site dist scores torture plant clean browser lowest way-in teams peers archive

# tests of campaigns, which must hold on a device too: a GPU is played under them
PLAYED := tests/campaign tests/contracts/test_methods.py tests/searches tests/spaces tests/guides \
  tests/end_to_end/test_same_bytes.py tests/torture/test_kills.py tests/torture/test_workers.py

venv: $(READY)

$(RUNS): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --no-compile -c constraints.txt torch==2.13.0 -e .
	touch $(RUNS)

$(READY): $(RUNS)
	$(BIN)/pip install -q -c constraints.txt -e .[dev]
	touch $(READY)

demo: $(RUNS)  ## the main job on real digits; ends with a report
	$(BIN)/hardcase demo

test: venv lint  ## laws, references, golden runs, end to end
	$(BIN)/python -m pytest -n 2 --dist worksteal

browser: venv  ## what needs Chromium and PostgreSQL (apt) or axe-core (npm); each says what it lacks
	HARDCASE_BROWSER=1 $(BIN)/python -m pytest -rs -m browser

lint: venv
	$(BIN)/ruff check --no-cache conftest.py src studies study teams tests benchmarks examples tools
	$(BIN)/ruff format --check conftest.py src studies study teams tests benchmarks tools
	$(BIN)/mypy
	$(BIN)/python tools/words.py

bench: venv  ## speed as ratios in one run, collected in results/bench-cpu.json
	$(BIN)/python -m benchmarks

gpu: venv  ## the figures of a machine with a GPU, collected in results/bench-gpu.json
	$(BIN)/python -m benchmarks gpu

insight: venv  ## slices, maps, severities, regressions and corruptions measured; kept in results/, a GPU is used if there is one
	$(BIN)/hardcase reproduce slices-faults --set trainings=5 --keep results
	$(BIN)/hardcase reproduce map-cells --repeats 10 --keep results
	$(BIN)/hardcase reproduce regression-search --keep results
	$(BIN)/hardcase reproduce severity-crossings --keep results
	$(BIN)/python -m benchmarks corruptions

gpu-pack: venv  ## what a machine without a network needs, as pieces of at most 27 MiB in carry/
	$(BIN)/python -m benchmarks.pack write $(PACK)

gpu-unpack:  ## installs those pieces there, beside the torch that $(PYTHON) has
	$(PYTHON) -m benchmarks.pack install

plant: venv  ## plant known defects one at a time and show that the suite catches each
	$(BIN)/python tests/plant_defects.py

torture: venv  ## the long form of the crash tests, and those that need a Ray cluster
	$(BIN)/pip install -q -c constraints.txt -e .[dev,ray]
	HARDCASE_TORTURE=long $(BIN)/python -m pytest tests/torture tests/worst_day teams/tests studies/tests study/tests/test_server_kills.py tests/end_to_end/test_beyond.py tests/end_to_end/test_photo_generators.py
	HARDCASE_TORTURE=long $(BIN)/python -m pytest -m long
	HARDCASE_PLAYED_DEVICE="tile=16" $(BIN)/python -m pytest $(PLAYED)

catalogue: venv  ## src/hardcase/catalogue.json, which `hardcase list` reads, from the registry; the schema of run.json
	$(BIN)/python -m hardcase.catalogue
	$(BIN)/python -m hardcase.runs.schema

results: venv  ## figures, results/tables and what is between marks in docs, written from results/*.json; measures nothing; CHECK=--check: are stored speeds of this code?
	$(BIN)/python docs/make_results.py $(CHECK)

docs: catalogue  ## docs/reference/configuration.md, written from the model of the configuration
	$(BIN)/python docs/make_tables.py

site: docs  ## the documentation site, in build/site/html; trains only LeNet-5, executes notebooks that changed
	$(BIN)/pip install -q -c constraints.txt -e .[docs]
	$(BIN)/python docs/make_site.py

dist: venv scores  ## the wheel, installed with all extras into an empty environment and used there; PYTHON=python3.13 for another Python
	HARDCASE_DIST=1 HARDCASE_DIST_PYTHON=$(PYTHON) $(BIN)/python -m pytest -rs tests/end_to_end/test_distribution.py

scores: venv  ## what others say of the package: sp-repo-review, pyroma, check-wheel-contents, and how complete its types are
	test -x $(VENV)-scores/bin/python || $(PYTHON) -m venv $(VENV)-scores
	$(VENV)-scores/bin/pip install -q 'sp-repo-review[cli]' pyroma check-wheel-contents 'pyright[nodejs]'
	./release.sh build
	$(VENV)-scores/bin/pip install -q --no-deps --force-reinstall dist/*.whl
	realpath $(VENV)/lib/python3.*/site-packages > $$(echo $(VENV)-scores/lib/python3.*/site-packages)/libraries.pth
	$(VENV)-scores/bin/check-wheel-contents dist/*.whl
	$(VENV)-scores/bin/pyroma --min=8 dist/*.tar.gz
	$(VENV)-scores/bin/sp-repo-review . --show err
	cd build && PATH=$$(realpath ../$(VENV)-scores/bin):$$PATH pyright --verifytypes hardcase --ignoreexternal | tail -12

# plug-ins, which need the packages that they plug into
TEAMS := teams/tests

teams:  ## plug-ins with MLflow, Lightning, transformers and MAITE, then FiftyOne, each in an environment beside .venv
	test -x $(VENV)-teams/bin/python || $(PYTHON) -m venv $(VENV)-teams
	$(VENV)-teams/bin/pip install -q torch==2.13.0 -e .[http,onnx,mlflow,lightning,huggingface,maite,study] pytest beartype hypothesis pyright
	$(VENV)-teams/bin/python -m pytest -rs $(TEAMS)
	$(VENV)-teams/bin/pip install -q 'maite<0.10' && $(VENV)-teams/bin/python -m pytest -rs $(TEAMS)/test_maite.py $(TEAMS)/test_maite_spotcheck.py
	test -x $(VENV)-fiftyone/bin/python || $(PYTHON) -m venv $(VENV)-fiftyone
	$(VENV)-fiftyone/bin/pip install -q torch==2.13.0 -e . fiftyone pytest beartype
	$(VENV)-fiftyone/bin/python -m pytest -rs teams/tests/test_fiftyone.py

PEERS := attackbenchlib==2.0.2 foolbox==3.3.4 eagerpy torchattacks==3.5.1 adv-lib==0.2.8 adversarial-robustness-toolbox==1.20.1 imagecorruptions==1.1.2

# WEIGHTS: the published ResNet-20 of CIFAR-10 as a file of safetensors; PHOTOS: 1,000 photographs of ImageNet's validation, REAL: their labels
ON_CIFAR10 := $(if $(WEIGHTS),--data cifar10 --set model=$(WEIGHTS))
ON_PHOTOS := $(if $(PHOTOS),--data 'folder:$(PHOTOS)?labels=prefix&split=all')

peers:  ## libraries of others in an environment beside .venv, and what they say of us; then python -m benchmarks peers; WEIGHTS=FILE PHOTOS=FOLDER REAL=FILE
	test -x $(VENV)-peers/bin/python || $(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/pip install -q torch==2.13.0 -e . tqdm six opencv-python-headless scikit-image
	$(VENV)-peers/bin/pip install -q --no-deps $(PEERS)
	$(VENV)-peers/bin/hardcase reproduce peers-attacks $(ON_CIFAR10) --keep results
	$(VENV)-peers/bin/hardcase reproduce peers-corruptions $(ON_PHOTOS) --keep results
	$(VENV)-peers/bin/hardcase reproduce peers-probability $(ON_CIFAR10) --keep results
ifdef PHOTOS
	for name in efficientnet-lite0 efficientnet-lite1 efficientnet-lite2 resnet50-imagenet mobilenetv2-imagenet; do \
	  $(VENV)-peers/bin/hardcase fetch model $$name || exit; done
	$(VENV)-peers/bin/hardcase reproduce peers-accuracy $(ON_PHOTOS) $(if $(REAL),--set real=$(REAL)) --keep results
endif

way-in: venv  ## a newcomer's way in a clean home, and every command of the first pages with every kind of model, stopped in each phase; says what cannot be had
	$(BIN)/pip install -q -c constraints.txt transformers timm
	$(BIN)/python -m pytest -rs tests/end_to_end/test_way_in.py
	HARDCASE_AS_TYPED=whole $(BIN)/python -m pytest -rs tests/as_typed

lowest: venv  ## the verbs with the lowest versions of all dependencies but torch
	$(BIN)/pip install -q --no-deps --no-compile --target build/lowest -r constraints-lowest.txt
	rm -rf build/lowest-run && mkdir -p build/lowest-run
	cd build/lowest-run && export PYTHONPATH=../lowest && python=../../$(BIN)/python && \
	  $$python -m hardcase run --model zoo:lenet5 --data mnist5k --method pgd --images 8 --out first && \
	  $$python -m hardcase report first && $$python -m hardcase shrink first --out smaller && \
	  $$python -m hardcase compare first smaller && \
	  $$python -m hardcase doctor --model zoo:lenet5 --data mnist5k

archive: venv  ## what Zenodo keeps of a release: source, wheels and metadata in build/
	./release.sh archive

clean:
	rm -rf $(VENV) $(VENV)-teams $(VENV)-fiftyone $(VENV)-scores .pytest_cache .mypy_cache .ruff_cache build dist src/*.egg-info
