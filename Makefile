# The front door; CMake does the work. `make help` tells what there is.
.DEFAULT_GOAL := build
PRESET ?= release
JOBS ?= $(shell nproc)
BUILD := build/$(PRESET)

.PHONY: build demo test bench help setup setup-test clean
help:
	@echo "make         build build/release/agoge"
	@echo "make demo    set up, then fine-tune, speak with and export a real model on this CPU"
	@echo "make test    set up, build and run every test"
	@echo "make bench   measure this machine (agoge bench)"
	@echo "make clean   remove build/"
	@echo "PRESET=release|debug|asan|tsan|coverage|fuzz chooses the build (default: release)"

setup:
	@tools/setup.sh build

setup-test:
	@tools/setup.sh test

build: setup
	@cmake --preset $(PRESET) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target agoge

demo: build
	@tools/demo.sh $(BUILD)/agoge

test: setup-test
	@cmake --preset $(PRESET) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error

bench: build
	@$(BUILD)/agoge bench

clean:
	rm -rf build
