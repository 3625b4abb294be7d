// The suite as published, with vitest's default time-out of 5 s per test.
// It holds 338 tests. Six of them, "Reserved subscription APIs", are an option of the suite that is
// off by default (`subscriptions`) and stay off until the server has subscriptions; vitest
// reports them as skipped. The other 332 all run.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

const baseUrl = process.env.CONFORMANCE_URL
if (!baseUrl) {
  throw new Error("CONFORMANCE_URL is not set; run this through test_protocol.py")
}

runConformanceTests({ baseUrl })
