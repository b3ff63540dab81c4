// The page at /: a chat that streams, and a live view of the batch. Text from the server is only ever set as text.
'use strict';
const $ = (id) => document.getElementById(id);
const el = (tag, cls, text) => {
  const e = document.createElement(tag);
  if (cls) e.className = cls;
  if (text !== undefined) e.textContent = text;
  return e;
};
let model = '';
let conversation = [];
let running = null;  // AbortController of the answers under way

function headers(key) {
  const h = {'content-type': 'application/json'};
  if (key) h.authorization = 'Bearer ' + key;
  return h;
}

async function failure(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return 'the server answered ' + response.status;
  }
}

// Calls `use` with the data of every event of a stream, until [DONE] or its end.
async function events(response, use) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    pending += value;
    const whole = pending.split('\n\n');
    pending = whole.pop();
    for (const event of whole) {
      const data = event.split('\n').filter((l) => l.startsWith('data: ')).map((l) => l.slice(6)).join('\n');
      if (data === '[DONE]') return;
      if (data) use(JSON.parse(data));
    }
  }
}

async function ask(messages, show, signal) {
  const body = {
    messages, stream: true, stream_options: {include_usage: true},
    max_tokens: Number($('tokens').value), temperature: Number($('temperature').value),
  };
  if (model) body.model = model;
  if ($('routing').value) body.routing = $('routing').value;
  const users = Math.max(1, Math.min(8, Number($('users').value) || 1));
  if (users > 1) body.n = users;
  const response = await fetch('v1/chat/completions',
                               {method: 'POST', headers: headers($('key').value), body: JSON.stringify(body), signal});
  if (!response.ok) throw new Error(await failure(response));
  let routing = response.headers.get('x-carpool-routing') || '', usage = null;
  await events(response, (data) => {
    if (data.error) throw new Error(data.error.message);
    if (data.usage) usage = data.usage;
    const first = data.choices && data.choices.find((c) => c.index === 0);
    const delta = first && first.delta;
    if (delta) show(delta.content || '', delta.reasoning_content || '');
  });
  return {routing, usage};
}

async function send(text) {
  const messages = [...conversation, {role: 'user', content: text}];
  $('messages').append(el('div', 'message user', text));
  const answer = el('div', 'message'), thought = el('span', 'thought'), said = el('span');
  answer.append(thought, said);
  $('messages').append(answer);
  const note = el('div', 'note');
  $('messages').append(note);
  running = new AbortController();
  busy(true);
  const begun = performance.now();
  try {
    const {routing, usage} = await ask(messages, (content, reasoning) => {
      said.textContent += content;
      thought.textContent += reasoning;
      $('messages').scrollTop = $('messages').scrollHeight;
    }, running.signal);
    const seconds = (performance.now() - begun) / 1000;
    note.textContent = routing + (usage ? `, ${usage.completion_tokens} tokens in ${seconds.toFixed(1)} s` : '');
    conversation = [...messages, {role: 'assistant', content: said.textContent}];
  } catch (e) {
    note.textContent = e.name === 'AbortError' ? 'stopped' : e.message;
    if (e.name !== 'AbortError') note.classList.add('error');
  }
  running = null;
  busy(false);
}

function busy(yes) {
  $('send').disabled = yes;
  $('stop').disabled = !yes;
}

$('form').addEventListener('submit', (e) => {
  e.preventDefault();
  const text = $('prompt').value.trim();
  if (!text || running) return;
  $('prompt').value = '';
  send(text);
});
$('prompt').addEventListener('keydown', (e) => {
  if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) {
    e.preventDefault();
    $('form').requestSubmit();
  }
});
$('stop').addEventListener('click', () => running && running.abort());
$('clear').addEventListener('click', () => {
  if (running) running.abort();
  conversation = [];
  $('messages').replaceChildren();
});
$('switch').addEventListener('submit', async (e) => {
  e.preventDefault();
  const said = $('switched');
  said.className = '';
  said.textContent = '…';
  const response = await fetch('admin/policy', {
    method: 'POST', headers: headers($('adminkey').value), body: JSON.stringify({policy: $('newpolicy').value.trim()})});
  if (response.ok) {
    said.textContent = 'now ' + (await response.json()).new;
  } else {
    said.className = 'error';
    said.textContent = await failure(response);
  }
});

// ---- the live view

const kKept = 240;  // looks, two a second
const history = [];

function draw() {
  const canvas = $('history'), c = canvas.getContext('2d');
  const style = getComputedStyle(document.documentElement);
  c.clearRect(0, 0, canvas.width, canvas.height);
  const most = Math.max(1, ...history.map((h) => h.plain || 0));
  for (const [field, color] of [['plain', '--would'], ['experts', '--loaded']]) {
    c.strokeStyle = style.getPropertyValue(color);
    c.lineWidth = 2;
    c.beginPath();
    let pen = false;
    history.forEach((h, i) => {
      if (h[field] === null) {
        pen = false;
        return;
      }
      const x = canvas.width * (i + kKept - history.length) / kKept;
      const y = canvas.height - 4 - (canvas.height - 20) * h[field] / most;
      if (pen) c.lineTo(x, y); else c.moveTo(x, y);
      pen = true;
    });
    c.stroke();
  }
  c.fillStyle = style.getPropertyValue('--would');
  c.fillText(most.toFixed(1), 4, 12);
}

function layer(index) {
  const rows = $('layers').children;
  if (rows[index]) return rows[index];
  const row = el('div', 'layer'), bar = el('div', 'bar');
  bar.append(el('i', 'would'), el('i', 'loaded'));
  row.append(el('span', '', String(index)), bar, el('span', 'numbers'));
  $('layers').append(row);
  return row;
}

const one = (x) => x === null ? '–' : x.toFixed(1);

function show(live) {
  $('policy').textContent = live.policy + (live.scope === 'shared' ? '' : '; scope ' + live.scope);
  $('load').textContent = `${live.running}, ${live.waiting}`;
  $('rows').textContent = one(live.rows);
  $('speed').textContent = live.tokens_per_second.toFixed(1);
  $('experts').textContent = live.experts === null ? '–' : `${one(live.experts)} of ${live.n_experts}`;
  $('plain').textContent = one(live.plain);
  $('rerouted').textContent = live.rerouted_share === null ? '–' : (100 * live.rerouted_share).toFixed(1) + ' %';
  $('kv').textContent = (100 * live.kv_share).toFixed(1) + ' %';
  live.layers.forEach((l, i) => {
    const row = layer(i);
    row.querySelector('.would').style.width = 100 * l.plain / live.n_experts + '%';
    row.querySelector('.loaded').style.width = 100 * l.experts / live.n_experts + '%';
    row.querySelector('.numbers').textContent = `${one(l.experts)} of ${one(l.plain)}`;
  });
  const moving = live.steps !== show.steps;
  show.steps = live.steps;
  history.push({experts: moving ? live.experts : null, plain: moving ? live.plain : null});
  if (history.length > kKept) history.shift();
  draw();
  for (const spec of live.allowed) {
    for (const list of ['routing', 'policies']) {
      if ([...$(list).children].some((o) => o.value === spec)) continue;
      const option = el('option', '', spec);
      option.value = spec;
      $(list).append(option);
    }
  }
}

async function look() {
  try {
    const response = await fetch('live', {headers: headers($('key').value), cache: 'no-store'});
    if (response.ok) {
      const live = await response.json();
      model = live.model;
      $('model').textContent = model;
      $('state').textContent = '';
      show(live);
    } else {
      $('state').textContent = await failure(response);
    }
  } catch {
    $('state').textContent = 'the server does not answer';
  }
  setTimeout(look, document.hidden ? 5000 : 500);
}
$('key').value = sessionStorage.getItem('key') || '';
$('key').addEventListener('change', () => sessionStorage.setItem('key', $('key').value));
look();
