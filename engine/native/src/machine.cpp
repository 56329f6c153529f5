// What a library is, and whether it runs here.

#include "amx.h"

// Which sources it was built from.
extern "C" const char* orca_fingerprint() { return ORCA_FINGERPRINT; }

// Whether the kernel lets this process use the registers that the library needs.
extern "C" int orca_usable() {
#if defined(__AMX_BF16__)
  return orca::may_use_amx();
#else
  return 1;
#endif
}
