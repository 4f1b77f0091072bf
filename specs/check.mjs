// Runs every configuration of manifest.json and prints one table. See README.md.
//
//   node check.mjs [--deep] [--controls] [--only Spec[/run]] [--traces] [--record] [--cfg Spec/run]
//
// --deep adds the larger bounds. --controls adds, for every mutant, the same
// configuration with its guard on, in which the property must hold: only then
// does the missing guard cause the failure.
//
// It fails unless every run has the result that the manifest expects:
//   pass   parsed, no error, and exactly the recorded number of distinct states
//   fail   the named property was violated, with a trace
//   reach  the named negated property was violated: the situation is reachable
// With TLA2TOOLS_JAR set, TLC executes the same runs and must agree.

import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { isMainThread, parentPort, Worker } from 'node:worker_threads'

const here = fileURLToPath(new URL('.', import.meta.url))
const read = name => readFileSync(join(here, name), 'utf8')

// ---------------------------------------------------------------- one run

async function checker() {
  const wasm = createRequire(import.meta.url).resolve('tla-checker/tla_checker_bg.wasm')
  const tla = await import('tla-checker')
  tla.initSync({ module: readFileSync(wasm) })
  return tla
}

// check returns {outcome, property, states, seconds, trace, error}.
function check(tla, run) {
  const began = performance.now()
  const result = JSON.parse(tla.check_spec_with_options(run.source, JSON.stringify({
    cfg_source: run.cfg, max_states: run.limit, max_depth: 1_000_000,
  })))
  const got = { states: result.states_explored, seconds: (performance.now() - began) / 1000 }
  if (result.success) return { ...got, outcome: 'pass' }
  if (result.error_type === 'InvariantViolation') {
    const index = Number(result.error_message.match(/\d+/)[0])
    return { ...got, outcome: 'fail', property: run.invariants[index], trace: traceOf(tla, run, result.trace) }
  }
  if (result.error_type === 'LivenessViolation') {
    return { ...got, outcome: 'fail', property: run.properties.join(), trace: traceOf(tla, run, result.trace) }
  }
  return { ...got, outcome: 'error', error: `${result.error_type}: ${result.error_message}` }
}

const statesOf = part => part.split(/^State \d+\n/m).slice(1).map(normal)

// traceOf is the trace of a violation. Without --traces or --deep it has the states only: to name
// the steps, the checker repeats each one, which takes longer than to find the violation.
const traceOf = (tla, run, parts) => (run.named ? trace(tla, run, parts) : parts.flatMap(statesOf))

// trace turns the checker's states into named steps with their changes. A
// liveness violation has two parts: a prefix, and a cycle that repeats.
function trace(tla, run, parts) {
  const explore = state => JSON.parse(tla.explore_next(run.source, run.cfg, '{}', JSON.stringify(state))).transitions
  const wanted = parts.map(statesOf)
  let current = JSON.parse(tla.explore_init(run.source, run.cfg, '{}')).states
    .find(s => shown(s.display) === wanted[0][0])
  const lines = ['   start']
  let n = 0
  const stepTo = to => {
    const step = explore(current.json).find(t => shown(t.state.display) === to)
    if (!step) return false
    lines.push(`${String(++n).padStart(2)}. ${step.action}  ${changes(current.json, step.state.json).join(', ')}`)
    current = step.state
    return true
  }
  for (const to of wanted[0].slice(1)) if (to !== shown(current.display)) stepTo(to)
  if (wanted.length > 1) {
    lines.push('   repeats:')
    const before = n
    for (const to of wanted[1]) if (to !== shown(current.display)) stepTo(to)
    if (n > before && wanted[1][0] !== shown(current.display)) stepTo(wanted[1][0])
    if (n === before) lines.push('    no further step')
  }
  return lines
}

const normal = text => text.trim().split('\n').map(l => l.trim()).sort().join('\n')
const shown = display => Object.entries(display).map(([k, v]) => `${k} = ${v}`).sort().join('\n')

// changes lists the differences between two states, element by element.
function changes(a, b, name = '') {
  const ea = entries(a), eb = entries(b)
  if (ea && eb && ea.length === eb.length && ea.every(([k], i) => k === eb[i][0])) {
    return ea.flatMap(([k, v], i) => changes(v, eb[i][1], name === '' ? k : `${name}[${k}]`))
  }
  return JSON.stringify(a) === JSON.stringify(b) ? [] : [`${name} = ${pretty(b)}`]
}

function entries(v) {
  if (v === null || typeof v !== 'object' || Array.isArray(v) || '__model' in v) return null
  if ('__tuple' in v) return v.__tuple.map((x, i) => [String(i + 1), x])
  if ('__fn' in v) return v.__fn.map(([k, x]) => [pretty(k), x])
  return Object.entries(v)
}

function pretty(v) {
  if (typeof v === 'string') return v
  if (Array.isArray(v)) return `{${v.map(pretty).join(', ')}}`
  if (v === null || typeof v !== 'object') return String(v).toUpperCase()
  if ('__model' in v) return v.__model
  if ('__tuple' in v) return `<<${v.__tuple.map(pretty).join(', ')}>>`
  return `[${entries(v).map(([k, x]) => `${k}: ${pretty(x)}`).join(', ')}]`
}

// ---------------------------------------------------------------- TLC

function tlc(jar, run) {
  const dir = mkdtempSync(join(tmpdir(), 'tlc-'))
  try {
    writeFileSync(join(dir, `${run.spec}.tla`), run.source)
    writeFileSync(join(dir, 'run.cfg'), run.cfg)
    const out = spawnSync('java', ['-XX:+UseParallelGC', '-cp', jar, 'tlc2.TLC', '-workers', '1', '-noTE',
      '-config', 'run.cfg', `${run.spec}.tla`], { cwd: dir, encoding: 'utf8', maxBuffer: 1 << 28 })
    const states = Number(out.stdout.match(/(\d+) distinct states found/g)?.at(-1)?.match(/\d+/)[0] ?? 0)
    if (out.status === 0) return { outcome: 'pass', states }
    const invariant = out.stdout.match(/Invariant (\w+) is violated/)
    if (invariant) return { outcome: 'fail', property: invariant[1], states }
    if (/Temporal propert(y|ies) .*violated/.test(out.stdout)) return { outcome: 'fail', property: run.properties.join(), states }
    return { outcome: 'error', error: (out.stdout.match(/^(Error|\*\*\*).*[\s\S]{0,400}/m)?.[0] ?? out.stderr).slice(0, 600), states }
  } finally {
    rmSync(dir, { recursive: true, force: true })
  }
}

// ---------------------------------------------------------------- the manifest

// runs makes a run of every line of the manifest: the spec's cfg with changed
// constants, and with the properties of the line.
function runs(manifest) {
  const all = []
  for (const [spec, { variants = {}, runs }] of Object.entries(manifest)) {
    const source = read(`${spec}.tla`), cfg = read(`${spec}.cfg`)
    const standard = words(cfg, 'INVARIANTS')
    const controls = runs.filter(l => l.expect === 'fail' && l.off).map(l => control(l, source))
    for (const line of [...runs, ...controls]) {
      const values = { ...variants[line.in], ...line.with }
      for (const guard of line.off ?? []) values[guard] = false
      const property = line.property ?? line.run
      const temporal = isTemporal(property, source)
      const single = line.expect !== 'pass'
      const invariants = single ? (temporal ? [] : [property]) : line.check ?? standard
      const properties = single ? (temporal ? [property] : []) : line.live ?? []
      all.push({ ...line, spec, source, id: `${spec}/${line.run}`, property, invariants, properties,
        limit: line.expect === 'pass' ? 20_000_000 : limitOf(runs),
        cfg: configuration(cfg, values, invariants, properties, spec) })
    }
  }
  return all
}

// limitOf bounds the states of a spec's mutants to ten times those of its
// largest passing run.
const limitOf = lines => 10 * Math.max(1000, ...lines.map(l => l.states ?? 0))

const isTemporal = (property, source) => new RegExp(`^${property} ==.*(<>|~>|\\[\\])`, 'm').test(source)

// control is a mutant's configuration with the guard on.
function control(line, source) {
  const temporal = isTemporal(line.property, source)
  return { run: `${line.run}, control`, in: line.in, with: line.with, off: line.second ? line.off.filter(g => g !== line.second) : [],
    expect: 'pass', control: true, check: temporal ? ['TypeOK'] : [line.property], live: temporal ? [line.property] : [] }
}

const words = (cfg, section) =>
  (cfg.match(new RegExp(`^${section}([\\s\\S]*?)(?=^[A-Z_]+\\b|$(?![\\s\\S]))`, 'm'))?.[1] ?? '').trim().split(/\s+/).filter(Boolean)

function configuration(cfg, values, invariants, properties, spec) {
  let text = cfg.replace(/^INVARIANTS[\s\S]*?(?=^[A-Z_]+\b)/m, '')
  for (const [name, value] of Object.entries(values)) {
    const line = new RegExp(`^(\\s*${name} =).*$`, 'm')
    if (!line.test(text)) throw new Error(`${spec}.cfg has no constant ${name}`)
    text = text.replace(line, (_, left) => `${left} ${typeof value === 'boolean' ? String(value).toUpperCase() : value}`)
  }
  if (invariants.length) text += `INVARIANTS\n${invariants.map(i => `  ${i}\n`).join('')}`
  if (properties.length) text += `PROPERTIES\n${properties.map(p => `  ${p}\n`).join('')}`
  return text
}

// gaps finds what the manifest lacks: a mutant for a guard, a run that violates
// a negated property, a run that checks a property. It also finds the two forms
// that tla-checker and TLC read differently.
function gaps(spec, lines) {
  const source = read(`${spec}.tla`), out = []
  const code = source.replace(/\\\*.*$/gm, '')
  const block = source.match(/^CONSTANTS\s+\\\* Guards[^\n]*\n([\s\S]*?)\n\n/m)
  for (const [, guard] of (block?.[1] ?? '').matchAll(/^\s*(\w+)/gm)) {
    if (!lines.some(l => l.expect === 'fail' && l.off?.length === 1 && l.off[0] === guard) &&
        !lines.some(l => l.expect === 'fail' && l.off?.includes(guard) && l.second === guard)) {
      out.push(`guard ${guard} has no mutant`)
    }
  }
  for (const line of lines.filter(l => l.second)) {
    const rest = line.off.filter(g => g !== line.second).join()
    if (!lines.some(l => l.expect === 'pass' && l.off?.join() === rest && [...l.invariants, ...l.properties].includes(line.property))) {
      out.push(`${line.run}: no passing run shows that ${line.property} holds without ${rest} alone`)
    }
  }
  const [, reachable = ''] = source.match(/^\\\* What must be reachable[^\n]*\n([\s\S]*)/m) ?? []
  for (const [, name] of reachable.matchAll(/^(Never\w+) ==/gm)) {
    if (!lines.some(l => l.expect === 'reach' && l.property === name)) out.push(`${name} has no reach run`)
  }
  const [, holds = ''] = source.match(/^\\\* What holds([\s\S]*?)(^\\\* What must be reachable|^====)/m) ?? []
  for (const [, name] of holds.matchAll(/^([A-Z]\w+) ==/gm)) {
    if (!lines.some(l => l.expect === 'pass' && [...l.invariants, ...l.properties].includes(name))) {
      out.push(`${name} is checked by no passing run`)
    }
    if (name !== 'TypeOK' && !lines.some(l => l.expect === 'fail' && l.property === name)) {
      out.push(`no run violates ${name}: replaced by TRUE, everything would pass`)
    }
  }
  code.split('\n').forEach((line, i) => {
    const { outside, groups } = parts(line)
    if ([outside, ...groups].some(loose)) {
      out.push(`line ${i + 1}: put the operands of => in parentheses (tla-checker binds it tighter than /\\ and \\/)`)
    }
    const flat = clause(outside)
    if (/\bELSE\b.*\/\\/.test(flat.replace(/\bIF\b.*?\bTHEN\b/g, 'THEN')))
      out.push(`line ${i + 1}: ELSE takes the rest of the line with it`)
    if (/(THEN|ELSE)\b.*\w'/.test(flat.replace(/^.*\w' = /, ''))) out.push(`line ${i + 1}: branch an action with \\/, not with IF`)
  })
  return out.map(text => `${spec}: ${text}`)
}

// parts splits a line at its brackets: the text outside, and the text in each,
// with 0 for the brackets inside it. A bracket that opens or closes on another
// line ends with its line.
function parts(line) {
  const groups = []
  let outside = line.replace(/"[^"]*"/g, '0'), next
  const innermost = /\(([^()]*)\)|\[([^[\]]*)\]|\{([^{}]*)\}|<<((?:(?!<<|>>).)*)>>/g
  const take = (_, ...inner) => { groups.push(inner.slice(0, 4).find(g => g !== undefined)); return '0' }
  while ((next = outside.replace(innermost, take)) !== outside) outside = next
  const open = outside.split(/[([{]/)
  return { outside: open[0], groups: [...groups, ...open.slice(1).flatMap(rest => rest.split(/[)\]}]/))] }
}

// clause is a line or group without its name, its bullet and its quantifiers.
function clause(text) {
  let rest = text.replace(/^.*?==/, ''), next
  while ((next = rest.replace(/^\s*(\/\\|\\\/)\s*/, '').replace(/^\s*\\[AE] [^:]*? : /, '')) !== rest) rest = next
  return rest
}

// loose finds an implication that shares its group with an operator of lower
// precedence, or continues on the next line.
function loose(text) {
  return clause(text).split(',').some(part => /=>/.test(part) &&
    (/\/\\|\\\//.test(clause(part)) || part.match(/=>/g).length > 1 || /=>\s*$/.test(part)))
}

// ---------------------------------------------------------------- all of them

async function main() {
  const args = process.argv.slice(2)
  const flag = name => args.includes(name)
  const value = name => (flag(name) ? args[args.indexOf(name) + 1] : undefined)
  const manifest = JSON.parse(read('manifest.json'))
  const every = runs(manifest)

  if (value('--cfg')) return console.log(every.find(r => r.id === value('--cfg')).cfg)

  const problems = Object.keys(manifest).flatMap(spec => gaps(spec, every.filter(r => r.spec === spec && !r.control)))
  if (!flag('--record') && !read('README.md').includes(summarise(every)))
    problems.push('README.md: the table of results differs from manifest.json; run with --record')
  const only = value('--only')
  const todo = every.filter((r, i) => (flag('--deep') || !r.deep) &&
    (!r.control || (flag('--controls') && every.findIndex(o => o.cfg === r.cfg) === i)) &&
    (!only || r.id === only || r.spec === only))
  if (only && todo.length === 0) problems.push(`--only ${only}: there is no such spec or run`)
  const jar = process.env.TLA2TOOLS_JAR
  const began = performance.now()
  const results = await spread(todo, flag('--traces') || flag('--deep'))
  const rows = []
  for (const [i, run] of todo.entries()) {
    const got = results[i]
    const wanted = run.expect === 'pass' ? 'pass' : `${run.property} violated`
    const seen = got.outcome === 'fail' ? `${got.property} violated` : got.outcome === 'error' ? got.error : 'pass'
    const wrong = []
    if (wanted !== seen) wrong.push('outcome')
    if (run.expect === 'pass' && !run.control && !flag('--record') && got.states !== run.states) wrong.push(`states, not ${run.states}`)
    if (run.expect !== 'pass' && !(got.trace?.length > 1)) wrong.push('no trace')
    if (jar) {
      const t = tlc(jar, run)
      const same = t.outcome === got.outcome && t.property === got.property && (t.outcome !== 'pass' || t.states === got.states)
      if (!same) wrong.push(`TLC: ${t.outcome} ${t.property ?? t.error ?? ''} ${t.states}`)
    }
    if (wrong.length) problems.push(`${run.id}: ${wrong.join('; ')}`)
    rows.push([run.spec, run.run, wanted, seen, String(got.states), got.seconds.toFixed(1),
      wrong.length ? `WRONG: ${wrong.join('; ')}` : ''])
  }
  table([['spec', 'configuration', 'expected', 'got', 'states', 'seconds', ''], ...rows])
  if (flag('--record')) record(todo, results)
  if (flag('--traces')) traces(todo, results, !only)

  const failing = todo.filter(r => r.expect === 'fail').length
  const seconds = ((performance.now() - began) / 1000).toFixed(0)
  console.log(`\n${todo.length} runs, ${failing} of them mutants or dropped assumptions, ${seconds} s` +
    (jar ? ', compared with TLC' : ''))
  for (const p of problems) console.log(`WRONG  ${p}`)
  process.exitCode = problems.length ? 1 : 0
}

// progress shows on a terminal how many runs are left. With --deep it writes a
// line for each run instead, so that a log of some hours can be read meanwhile.
function progress(run, result, left) {
  if (process.argv.includes('--deep')) {
    const { outcome, states, seconds } = result
    return process.stderr.write(`${left} left, ${seconds.toFixed(0)} s: ${run.id}, ${outcome}, ${states} states\n`)
  }
  if (process.stderr.isTTY) process.stderr.write(`\x1b[2K\r${left ? `${left} runs left` : ''}`)
}

// spread executes the longest runs first, on two threads. A run whose number of
// states is not recorded yet comes before the others.
function spread(todo, named) {
  const length = run => run.states ?? (run.expect === 'pass' && !run.control ? Infinity : 0)
  const order = todo.map((_, i) => i).sort((a, b) => length(todo[b]) - length(todo[a]) || 0)
  const results = new Array(todo.length)
  const threads = Math.max(1, Math.min(2, availableParallelism(), todo.length))
  return new Promise((resolve, reject) => {
    let open = todo.length
    if (!open) return resolve(results)
    for (let t = 0; t < threads; t++) {
      const worker = new Worker(new URL(import.meta.url))
      let at
      const next = () => {
        at = order.shift()
        if (at === undefined) return worker.postMessage(null)
        const { spec, source, cfg, invariants, properties, limit } = todo[at]
        worker.postMessage({ spec, source, cfg, invariants, properties, limit, named })
      }
      worker.on('message', result => {
        results[at] = result
        open--
        progress(todo[at], result, open)
        if (open === 0) resolve(results)
        next()
      })
      worker.on('error', reject)
      next()
    }
  })
}

function table(rows) {
  const width = rows[0].map((_, c) => Math.min(44, Math.max(...rows.map(r => r[c].length))))
  const padded = (cell, c) => (c >= 4 && c <= 5 ? cell.padStart(width[c]) : cell.padEnd(width[c]))
  for (const r of rows) console.log(r.map(padded).join('  ').trimEnd())
}

// record writes the number of states of every passing run into the manifest.
function record(todo, got) {
  let spec
  const lines = read('manifest.json').split('\n').map(line => {
    spec = line.match(/^  "(\w+)": \{/)?.[1] ?? spec
    const name = line.match(/"run": "([^"]+)"/)?.[1]
    const i = todo.findIndex(r => r.spec === spec && r.run === name)
    if (i < 0 || todo[i].expect !== 'pass' || got[i].outcome !== 'pass') return line
    return line.replace(/, "states": \d+/, '').replace(/( ?\})(,?)$/, `, "states": ${got[i].states}$1$2`)
  })
  writeFileSync(join(here, 'manifest.json'), lines.join('\n'))
  const summary = summarise(runs(JSON.parse(lines.join('\n'))))
  const block = /(<!-- results -->\n)[\s\S]*?(<!-- end -->)/
  writeFileSync(join(here, 'README.md'), read('README.md').replace(block, (_, a, b) => `${a}${summary}\n${b}`))
}

// traces writes one file for every violated property, and a list of them.
function traces(todo, results, all) {
  const dir = join(here, 'traces')
  mkdirSync(dir, { recursive: true })
  if (all) for (const f of readdirSync(dir)) rmSync(join(dir, f))
  const list = ['# What each guard is for', '',
    'Without the guard, the property fails, as the shortest trace shows. Written by `node check.mjs --traces`.', '',
    '| spec | without | this fails | steps |', '|---|---|---|---|']
  for (const [i, run] of todo.entries()) {
    if (run.expect === 'pass' || run.deep || !results[i].trace) continue
    const head = run.expect === 'reach' ? `${run.spec}, ${run.run}: the situation is reachable (${run.property} fails, as it must)`
      : run.off ? `${run.spec} without ${run.off.join(' and ')}: ${run.property} fails`
      : `${run.spec}, ${run.run}: ${run.property} fails`
    const steps = results[i].trace
    const file = `${run.spec}-${run.run.replace(/\W+/g, '-')}.txt`
    if (run.expect === 'fail') {
      const without = run.off ? run.off.map(g => `\`${g}\``).join(', ') : run.run
      const length = steps.filter(l => /^ *\d/.test(l)).length
      list.push(`| ${run.spec} | ${without} | \`${run.property}\` | [${length}](${file}) |`)
    }
    writeFileSync(join(dir, file),
      `${head}\n${run.why ? `${run.why}\n` : ''}\n${steps.join('\n')}\n`)
  }
  if (all) writeFileSync(join(dir, 'README.md'), list.join('\n') + '\n')
}

// summarise makes the table of README.md.
function summarise(every) {
  const rows = [
    '| spec | passing runs (distinct states) | mutants and dropped assumptions, in which the named property fails | reachable situations |',
    '|---|---|---|---|']
  for (const spec of new Set(every.map(r => r.spec))) {
    const mine = every.filter(r => r.spec === spec && !r.control)
    const passing = mine.filter(r => r.expect === 'pass' && !r.deep).map(r => `${r.run} ${r.states}`).join('; ')
    const count = expect => mine.filter(r => r.expect === expect).length
    rows.push(`| [${spec}](${spec}.tla) | ${passing} | ${count('fail')} | ${count('reach')} |`)
  }
  return rows.join('\n')
}

if (isMainThread) {
  await main()
} else {
  const tla = await checker()
  parentPort.on('message', run => {
    if (run === null) return parentPort.close()
    let result
    try {
      result = check(tla, run)
    } catch (error) {
      result = { outcome: 'error', error: String(error), states: 0, seconds: 0 }
    }
    parentPort.postMessage(result)
  })
}
