# How the compiler and the linker are called: warnings, hardening, sanitizers, libraries.

WARN   := -Wall -Wextra -Wshadow -Wformat=2 -Wstrict-prototypes \
          -Wmissing-prototypes -Wconversion -Wvla -Werror=format-security
# -fcf-protection is x86's; where another compiler sets FORTIFY itself, ours counts.
HARDEN := -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -fstack-protector-strong \
          -fstack-clash-protection \
          $(if $(filter x86_64% i686%,$(shell $(CC) -dumpmachine 2>/dev/null)),-fcf-protection=full)
PKG    := $(shell command -v pkg-config 2>/dev/null || echo false)
MARIADB_CFLAGS ?= $(shell $(PKG) --cflags libmariadb 2>/dev/null)
MARIADB_LIBS   ?= $(shell $(PKG) --libs libmariadb 2>/dev/null)
LUA_CFLAGS     ?= $(shell $(PKG) --cflags lua5.4 2>/dev/null)
LUA_LIBS       ?= $(shell $(PKG) --libs lua5.4 2>/dev/null)
JANSSON_LIBS   ?= $(shell $(PKG) --libs jansson 2>/dev/null)
UV_LIBS        ?= $(shell $(PKG) --libs libuv 2>/dev/null)
# For `work --http`; where it is missing the program is built without that.
MHD_LIBS       ?= $(shell $(PKG) --libs libmicrohttpd 2>/dev/null)
# For `top`; the same.
CURSES_LIBS    ?= $(shell $(PKG) --libs ncursesw 2>/dev/null)

# `make DEBUG=1` builds with asserts, tiny first buffers and little optimisation;
# SAN=address,undefined (or thread) adds sanitizers. Each has its own folder:
# O=build/asan make SAN=address,undefined
ifdef DEBUG
OPT := -Og -g -DNS_DEBUG -fno-omit-frame-pointer
else
OPT := -O2 -g
endif
ifdef SAN
OPT := -O1 -g -DNS_DEBUG -fno-omit-frame-pointer -fsanitize=$(SAN) \
       -fno-sanitize-recover=all
HARDEN :=
endif

CPPFLAGS += -D_GNU_SOURCE
CFLAGS   ?= $(OPT)
PIC      := -fPIC
NS_CFLAGS = -std=c11 $(CFLAGS) $(WARN) $(HARDEN) $(PIC) -fvisibility=hidden \
            -pthread -MMD -MP
LDFLAGS  += $(if $(SAN),-fsanitize=$(SAN)) -Wl,-z,relro,-z,now,-z,noexecstack -pthread

# `make V=1` shows the commands.
ifdef V
SAY := @:
Q :=
else
SAY := @printf '  %-5s %s\n'
Q := @
endif
