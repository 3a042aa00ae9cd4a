// The main of every test of CPU kernels.
#include "common/test/check.h"

int main() { return largeout::TestMain(); }
