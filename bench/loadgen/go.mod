module bottomless/bench/loadgen

go 1.21
