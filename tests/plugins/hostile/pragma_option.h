#pragma comment(option, "-run")
