# make demo    train examples/resnet50.yaml, fitted to this machine, through interruptions on the local cloud (nothing is rented)
# make help    this list
# make quick   what needs no server, no training and no kill: run it after each edit (a minute on 2 idle cores)
# make test    everything that has to hold: run it before each push (20 minutes on 2 cores)
# make nightly the same by every way and for every case, and prints its time; make shares measures the budgets of make test
# make battery  lists the batteries: what each proves, how long it takes, its last result; make battery NAME=chaos runs one
# make live CLOUD=aws   the first day on your account, as docs/aws.md (or gcp) has it: at most $2; ACCOUNT=test has it on this machine
# make night-notices  how soon the function of a night answers an interruption warning, on EC2 that is on this machine (as root; ten minutes)
# make interruptions   plain Lightning and spotrun under the same kills, side by side
# make checkpoint-benchmark   what a checkpoint costs: spotrun, six others, and the limits of this machine
# make downtime   what an interruption costs in time: spotrun, a poll and relaunch, a scaling group (some minutes)
# make gpu     what only a GPU can confirm, with a table at the end (docs/benchmarks.md); make gpu DEVICE=cpu tries it without one,
#              and make gpu DEVICE=test on the simulated accelerator of the tests;
#              make wheels brings what a machine with a GPU and without a network lacks into build/wheels
# make picture   the pictures of a terminal and of a report for README and guide, from a demo run
# make dist    wheel and source distribution of the last commit in dist/, the same bytes whenever and wherever they are built
# make docs    the pages of docs/ as a site in build/site, with all links checked; make reference rewrites the generated ones
# make audit   looks up known vulnerabilities of what is locked, at api.osv.dev
# make install .venv with spotrun in it, and what the demo trains with; make clean takes all of it away
# make lock    what make and instances install, written down anew after a change of pyproject.toml, with the digest of each
#              wheel; make lock LOCK_ARGS=--upgrade takes the newest versions, LOCK_ARGS='-P NAME' that of one package
#
# Paths are relative, so that any folder will do, one with a space in its name included.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
PYTEST_ARGS ?=
CHECKPOINT_ARGS ?=
NIGHT_NOTICES_ARGS ?=
LOCK_ARGS ?=
AUDIT_ARGS ?=
GPU_PYTHON ?= .venv/bin/python
GPU_ARGS ?=
DEVICE ?= auto
WHEELS_FOR ?= 3.12

PIP := .venv/bin/python -m pip --disable-pip-version-check install -qq --no-warn-script-location
LOCKED := $(PIP) --require-hashes --no-deps --only-binary :all:
PEERS_PIP := .venv/bin/python -m pip --disable-pip-version-check install -qq --no-warn-conflicts --target .peers
LOCKS := spotrun/boot/torch.txt spotrun/boot/lock.txt locks/examples.txt
SOURCES := pyproject.toml Makefile $(LOCKS) spotrun/boot/cuda.txt locks/torch-cpu.txt
DEV_LOCKS := spotrun/boot/gcp.txt locks/tests.txt

# A venv knows its own path: one that was copied along from elsewhere must not install into the original.
MOVED := $(shell test -f .venv/pyvenv.cfg && grep -q '^command = ' .venv/pyvenv.cfg && \
	! grep -qF " $$(pwd -P)/.venv" .venv/pyvenv.cfg && echo moved)

.PHONY: help demo quick test nightly shares battery device live night-notices function interruptions checkpoint-benchmark downtime gpu picture docs reference \
	browser dist wheels install dev lock audit lint types clean moved

demo: .venv/.installed
	.venv/bin/python examples/demo.py

# The list at the head of this file, up to its first line that is not about a target.
help:
	@sed -n -e '/^#$$/q' -e 's/^# //p' Makefile

# Each pytest worker computes on one core: two of them with two threads each would mostly wait for one another.
# With CI=true a test that was skipped without being listed in tests/support/expected_skips.txt is a failure.
# The tests start a thousand Pythons: they begin sooner where they find their bytecode.
# Where processes run, much of the time is waiting, for deadlines and polls: further workers compute meanwhile.
quick test nightly shares battery: export PYTHONDONTWRITEBYTECODE :=
quick test nightly shares: export OMP_NUM_THREADS ?= 1
quick: WORKERS ?= 2
test nightly shares: WORKERS ?= 4
TESTS = .venv/bin/python -m pytest $(addprefix -p tests.plugins.,processor_time forked unchanged warm) --forks $(WORKERS)
quick: .venv/.installed-dev
	.venv/bin/ruff check --quiet .
	$(TESTS) -q --cpu-max 0.5 -m 'not exhaustive and not nightly' tests/unit $(PYTEST_ARGS)

# Each module has a budget (tests/plugins/processor_times.txt), unless PYTEST_ARGS chooses other tests.
test: .venv/.installed-dev .browser/.installed
	.venv/bin/ruff check --quiet .
	$(TESTS) -m 'not nightly' --unchanged skip $(if $(PYTEST_ARGS),,--shares check) \
		$(if $(CI),--junitxml=.pytest-results.xml) $(PYTEST_ARGS)
	$(if $(CI),.venv/bin/python tests/support/expected_skips.py .pytest-results.xml)

nightly: .venv/.installed-dev .browser/.installed .vulkan
	$(TESTS) -p tests.plugins.patterns --unchanged record --shares print --patterns write $(PYTEST_ARGS)

shares: .venv/.installed-dev .browser/.installed
	$(TESTS) -m 'not nightly' --shares write

# The simulated accelerator of tests/device. Without a C++ compiler its tests are skipped.
test nightly shares: device

device: .venv/.installed-dev
	@.venv/bin/python -m tests.device.build

# tests/batteries/batteries.toml has the batteries, and the last result of each.
battery: .venv/.installed-dev
	@.venv/bin/python -m tests.batteries $(NAME) $(ARGS)

live: .venv/.installed-dev
	.venv/bin/python -m tests.batteries.live $(CLOUD) $(if $(ACCOUNT),--account $(ACCOUNT))

night-notices: function
	OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks.night_notice $(NIGHT_NOTICES_ARGS)

# What runs the nights of `spotrun night`, as that installs it.
function: .venv/.installed-dev
	@.venv/bin/python -m spotrun.clouds.aws.function_zip build/function.zip

# What the tests look at the HTML reports with: axe-core, and Chromium where the machine has none, from the npm registry,
# as package-lock.json pins them. Without npm those tests are skipped.
BROWSER := $(addprefix tests/browser/,package.json package-lock.json unpack.mjs)
CHROMIUM := $(shell for p in chromium chromium-browser google-chrome google-chrome-stable; do command -v $$p && break; done)

browser: .browser/.installed

.browser/.installed: $(BROWSER)
ifeq ($(shell command -v npm),)
	@echo "npm was not found: the tests that look at reports in a browser are skipped"
else
	@rm -rf .browser
	@mkdir .browser
	@cp $(BROWSER) .browser
	@cd .browser && npm ci --loglevel=error --no-audit --no-fund --ignore-scripts $(if $(CHROMIUM),--omit=optional)
	@$(if $(CHROMIUM),,cd .browser && node unpack.mjs && rm -r node_modules/@sparticuz)
	@touch $@
endif

# The pages that are generated: docs/job-reference.md from the schema, docs/cli.md from the commands.
reference: .venv/.installed-dev
	.venv/bin/python -m docs.tools.reference

docs: .venv/.installed-dev
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs --quiet build

# On a machine with PyTorch of its own: make gpu GPU_PYTHON=python3.
gpu: $(if $(filter .venv/bin/python,$(GPU_PYTHON)),.venv/.installed-dev) $(if $(filter test,$(DEVICE)),device)
	$(GPU_PYTHON) -m tests.batteries.gpu --device $(DEVICE) $(GPU_ARGS)

wheels: dist
	rm -rf build/wheels
	mkdir -p build/wheels
	cp dist/*.whl build/wheels
	$(subst install,download,$(PIP:--no-warn-script-location=)) --require-hashes --no-deps --only-binary :all: -d build/wheels \
		--implementation cp --python-version $(WHEELS_FOR) $(foreach glibc,12 17 27 28,--platform manylinux_2_$(glibc)_x86_64) \
		--platform manylinux1_x86_64 --platform manylinux2014_x86_64 -r spotrun/boot/lock.txt

# Trains the demo's job in a store of its own (five minutes), and takes the pictures of its terminal and of its report.
picture: .venv/.installed-dev .browser/.installed
	rm -rf build/picture
	mkdir -p build/picture
	FORCE_COLOR=1 COLUMNS=124 .venv/bin/spotrun launch examples/resnet50.yaml -y --store build/picture/runs > build/picture/output
	.venv/bin/python -m tests.support.demo_pictures build/picture/output build/picture/runs docs

# Peers go into a folder of their own: s3fs holds back boto3.
.peers: locks/peers.txt | .venv/.installed-dev
	rm -rf $@
	$(PEERS_PIP) --require-hashes --no-deps --no-build-isolation -r locks/peers.txt

.vulkan: locks/vulkan.txt | .venv/.installed-dev
	rm -rf $@
	mkdir $@
	$(subst .peers,$@,$(PEERS_PIP)) --require-hashes --no-deps --only-binary :all: -r locks/vulkan.txt

interruptions: .peers
	OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks.interruptions

checkpoint-benchmark: .peers
	OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks.checkpoint $(CHECKPOINT_ARGS)

downtime: .venv/.installed-dev
	OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks.downtime

dist: .venv/.installed-dev
	@.venv/bin/python -m tests.support.dist dist

# One lock at a time: pip-audit refuses a package that two files have. The database has PyPA's and GitHub's advisories.
audit:
	@$(PYTHON) -m venv build/audit
	@build/audit/bin/python -m pip --disable-pip-version-check install -qq pip-audit
	@date -u '+looked up on %Y-%m-%d:'
	@status=0; for lock in spotrun/boot/*.txt locks/*.txt; do \
		echo "$$lock"; \
		build/audit/bin/pip-audit --disable-pip --strict --progress-spinner off -s osv -r "$$lock" $(AUDIT_ARGS) || status=1; \
	done; exit $$status

lint: .venv/.installed-dev
	.venv/bin/ruff check .

types: .venv/.installed-dev
	.venv/bin/python -m mypy

install: .venv/.installed

dev: .venv/.installed-dev device

.venv/bin/python: $(MOVED)
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11, 3.12 or 3.13 found"; \
		echo "  try: apt-get install python3 python3-venv, or make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) cannot make virtual environments"; \
		echo "  try: apt-get install python3-venv"; exit 1; }
	$(if $(MOVED),rm -rf .venv)
	@$(PYTHON) -m venv .venv

# PyTorch's CPU build, where pip finds one, is the version that torch.txt names, so that pip leaves it there. It asks for
# no CUDA, which is gigabytes.
HAS_CPU_BUILD := sed -e 's/ \\$$//' -e '/--hash/d' locks/torch-cpu.txt | $(PIP) --dry-run --no-deps -r /dev/stdin 2>/dev/null
ASKS_FOR_CUDA := grep -qE '^Requires-Dist: (cuda|nvidia)-' .venv/lib/python3.*/site-packages/torch-*.dist-info/METADATA

# $(1): the files of the lock, $(2): spotrun with its extras. pip finds all that it names here, or says what the lock lacks.
define INSTALL
	@if $(HAS_CPU_BUILD); then $(LOCKED) -r locks/torch-cpu.txt; fi
	@$(LOCKED) $(addprefix -r ,$(1))
	@if $(ASKS_FOR_CUDA); then $(LOCKED) -r spotrun/boot/cuda.txt; fi
	@$(PIP) --no-index --no-build-isolation --editable '$(2)'
endef

.venv/.installed: $(SOURCES) $(MOVED) | .venv/bin/python
	@echo "installing torch, then spotrun and what it needs, into .venv: about a minute from a warm package cache"
	$(call INSTALL,$(LOCKS),.[examples])
	@touch $@

.venv/.installed-dev: $(SOURCES) $(DEV_LOCKS) $(MOVED) | .venv/bin/python
	@echo "installing torch, then spotrun and what its tests need, into .venv"
	$(call INSTALL,$(LOCKS) $(DEV_LOCKS),.[dev])
	@touch .venv/.installed $@

# By what the last lock has: a need that is new in pyproject.toml is in none yet.
lock: | .venv/bin/python
	@$(LOCKED) -r spotrun/boot/lock.txt $(addprefix -r ,$(DEV_LOCKS))
	@.venv/bin/python -m tests.support.write_locks $(LOCK_ARGS)

clean:
	rm -rf .venv .peers .vulkan .newest .browser build dist spotrun.egg-info .pytest-results.xml .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
