// Which sources a library was built from.

extern "C" const char* orca_fingerprint() { return ORCA_FINGERPRINT; }
