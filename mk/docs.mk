# The pages as a site, with two more that are made from annotations and the parser.

# What pages link to goes along, so that MkDocs finds each link's end; it fails where one has none.
SITE := README.md CONTRIBUTING.md CHANGELOG.md doc examples src/include $(wildcard src/*/README.md)

#: make docs        README.md and doc/ as a site with a search box, into build/docs/html
.PHONY: docs
docs: all
	@sh .ci/deps docs
	@rm -rf $(O)/docs && mkdir -p $(O)/docs/pages
	@cp -r --parents $(SITE) $(O)/docs/pages
	@LUA_PATH="lua/?.lua;lua/?/init.lua;;" LUA_CPATH="$(O)/?.so;;" $(LUA) doc/reference.lua $(O)/docs/pages/doc
	@cp doc/mkdocs.yml $(O)/docs && cd $(O)/docs && mkdocs build --quiet --strict
	@echo "open $(O)/docs/html/index.html; for the search box: python3 -m http.server -b 127.0.0.1 -d $(O)/docs/html"
