# `make` lists the targets. ARGS goes to the command: make run ARGS=--once

GO   ?= go
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help deps deps-run build run test tests race verify lint lint-api bench schema zones specs specs-deep fmt clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## Install missing tools for building, running and testing
	@sh dev/deps.sh go postgres mariadb node

deps-run:
	@sh dev/deps.sh go postgres

build: ## Build bin/lemma
	@sh dev/deps.sh go
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/lemma ./cmd/lemma

run: deps-run build ## Run the demo on this machine (ARGS=--once stops after it)
	@bin/lemma dev $(ARGS)

test: deps specs tests ## Check the specs, and run all tests against real Postgres and MariaDB

# The longest package comes first, so that it does not run alone at the end, beside those of sender,
# whose tests wait more than they work. vet runs in lint.
tests: deps
	$(GO) test -vet=off -timeout 40m ./chaos ./sender/... ./...

race: deps ## Run the tests with the race detector, except those of time and memory (needs a C compiler)
	CGO_ENABLED=1 $(GO) test -race -short -timeout 40m ./...

# vet and staticcheck run in golangci-lint. The tests are also a part of make test.
verify: deps lint lint-api ## Check format, vet, linters, architecture rules, contract, migrations, licences
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted, run make fmt: $$unformatted"; exit 1; }
ifeq ($(filter test race,$(MAKECMDGOALS)),)
	$(GO) test -count=1 .
	$(GO) test -count=1 -run 'Contract|Routes|Operation|Inputs' ./api
	$(GO) test -count=1 -run 'Status|SchemaDump|Promises' ./migrations
endif

lint: ## Run golangci-lint by .golangci.yaml
	@sh dev/deps.sh go
	$(GO) tool -modfile=dev/lint/go.mod golangci-lint run ./...

lint-api: ## Check openapi.yaml with redocly and spectral
	@sh dev/deps.sh node
	cd dev/openapi && npm ci --no-audit --no-fund --silent && npm run --silent lint

bench: deps-run build ## Run the benchmarks; one JSON line per figure
	@bin/lemma bench $(ARGS)

schema: deps-run ## Write migrations/schema.sql, the schema after all migrations
	$(GO) generate ./migrations

zones: ## Copy the time zones of Go to zoneinfo.zip
	cp "$$($(GO) env GOROOT)/lib/time/zoneinfo.zip" zoneinfo.zip

specs: ## Check the TLA+ specs and that the code they name exists
	@sh dev/deps.sh node
	cd specs && npm ci --no-audit --no-fund --silent && nice npm run --silent check && npm run --silent map

specs-deep: deps ## Check the specs at larger bounds, each mutant with its guard, and that tests run the code they name
	cd specs && npm ci --no-audit --no-fund --silent && npm run --silent deep && npm run --silent map -- --cover

fmt: ## Format all Go files
	gofmt -w .

clean: ## Remove the binary and the data of the demo
	rm -rf bin .lemma
