/*
** The error record. Messages that do not fit are cut, never refused.
*/
#include "err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const codes[] = {"OK",
#define NS_ERR_CODE(name, code, meaning) code,
                                    NS_ERRORS(NS_ERR_CODE)
#undef NS_ERR_CODE
};

ns_status ns_fail(ns_err *err, ns_status status, const char *fmt, ...) {
  va_list ap;
  if (err == NULL)
    return status;
  err->status = status;
  err->sqlerr = 0;
  err->job = 0;
  va_start(ap, fmt);
  vsnprintf(err->message, sizeof err->message, fmt, ap);
  va_end(ap);
  return status;
}

ns_status ns_no_memory(ns_err *err) {
  return ns_fail(err, NS_ENOMEM, "out of memory");
}

ns_status ns_err_context(ns_err *err, const char *context) {
  char old[sizeof err->message];
  if (err == NULL)
    return NS_OK;
  memcpy(old, err->message, sizeof old);
  snprintf(err->message, sizeof err->message, "%s: %.400s", context, old);
  return err->status;
}

void ns_err_clear(ns_err *err) {
  err->status = NS_OK;
  err->sqlerr = 0;
  err->job = 0;
  err->message[0] = '\0';
}

const char *ns_code(ns_status status) {
  size_t i = (size_t)status;
  return i < sizeof codes / sizeof codes[0] ? codes[i] : "UNKNOWN";
}
