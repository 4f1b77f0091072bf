# `make` lists the targets. ARGS goes to the command: make run ARGS=--once

GO   ?= go
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help deps deps-run build run test race verify bench schema specs specs-deep fmt clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## Install what building, running and testing need and this machine lacks
	@sh dev/deps.sh go postgres mariadb node

deps-run:
	@sh dev/deps.sh go postgres

build: ## Build bin/lemma
	@sh dev/deps.sh go
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/lemma ./cmd/lemma

run: deps-run build ## Run everything on this machine and send a campaign (ARGS=--once ends after it)
	@bin/lemma dev $(ARGS)

test: deps specs ## Check the specs, and run all tests against real Postgres and MariaDB
	$(GO) test -timeout 20m ./...

race: deps ## Run all tests with the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GO) test -race -timeout 40m ./...

verify: deps ## Check format, vet, staticcheck, house rules, contract, migrations, licences
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted, run make fmt: $$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) test -count=1 -run 'House|Table|Licence|Dependenc' .
	$(GO) test -count=1 -run 'Contract|Routes|Operation' ./api
	$(GO) test -count=1 -run 'Status|SchemaDump|Promises' ./migrations

bench: deps-run build ## Measure the hot paths, one JSON line per figure
	@bin/lemma bench $(ARGS)

schema: deps-run ## Write migrations/schema.sql, what the migrations add up to
	$(GO) generate ./migrations

specs: ## Check the TLA+ specs and that what they name exists
	@sh dev/deps.sh node
	cd specs && npm ci --no-audit --no-fund --silent && npm run --silent check && npm run --silent map

specs-deep: deps ## Check the specs at larger bounds, every mutant with its guard on, and that tests run what their rows name
	cd specs && npm ci --no-audit --no-fund --silent && npm run --silent deep && npm run --silent map -- --cover

fmt: ## Format all Go files
	gofmt -w .

clean: ## Remove what was built, and the demo's data
	rm -rf bin .lemma
