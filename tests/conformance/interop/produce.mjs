// Writes the numbers 0..COUNT-1 with the official client's IdempotentProducer, pipelined.
// Usage: node produce.mjs URL COUNT
// Prints one line of JSON at the end: how often a request was sent again, and the last offset.
import { DurableStream, IdempotentProducer } from "@durable-streams/client"

const [url, count] = process.argv.slice(2)
const result = { resent: 0, errors: [], offset: null }

// The producer sends each batch once and tells of a broken line with onError; whoever wants a batch
// sent again (the same number, so it is stored once) gives it a fetch that is patient.
async function patientFetch(...request) {
  for (;;) {
    try {
      return await fetch(...request)
    } catch {
      result.resent += 1
      await new Promise((resolve) => setTimeout(resolve, 10 * Math.random()))
    }
  }
}

const stream = new DurableStream({ url, contentType: "application/json" })
const producer = new IdempotentProducer(stream, "official", {
  fetch: patientFetch,
  maxBatchBytes: 200,
  maxInFlight: 5,
  onError: (error) => result.errors.push(String(error)),
})
for (let number = 0; number < Number(count); number += 1) {
  producer.append(JSON.stringify({ n: number }))
}
await producer.flush()
result.offset = producer.lastSuccessfulOffset
console.log(JSON.stringify(result))
